"""Distillation from a sparse teacher.

A teacher with softmax hands over a thousand tiny probabilities, and keeping only the largest is a
guess. A sparse teacher has few, and these are all: a file of pairs is the whole target, and the
student's loss is zero exactly where it agrees. The right picture has the total variation between
teacher and student, half of Σ |yᵢ − ŷᵢ|, which means the same for both.
"""

import torch
from matplotlib.figure import Figure

import fenchel


def picture() -> Figure:
    torch.manual_seed(0)
    inputs, classes = torch.randn(128, 20), 1000
    truth = torch.randn(20, classes) / 20**0.5
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (name, mapping) in enumerate(
        {"softmax": fenchel.Softmax(), "entmax 1.5": fenchel.Entmax(1.5)}.items()
    ):
        target = mapping(3 * inputs @ truth)
        size = float((target > 0).sum(-1).float().mean())
        left.bar(index, size, color=f"C{index + 1}")
        left.annotate(f"{size:.0f}", (index, size), ha="center", va="bottom")
        student = torch.nn.Linear(20, classes)
        optimizer = torch.optim.Adam(student.parameters(), lr=0.03)
        distances = []
        for _ in range(40):
            optimizer.zero_grad()
            scores = student(inputs)
            fenchel.fenchel_young_loss(mapping, scores, target).backward()
            optimizer.step()
            distances.append((mapping(scores.detach()) - target).abs().sum(-1).mean().item() / 2)
        right.plot(distances, color=f"C{index + 1}", linewidth=2, label=name)
    left.set_xticks([0, 1], ["softmax", "entmax 1.5"])
    left.set(yscale="log", ylim=(1, 3000))
    left.set_title("numbers to store per input", loc="left", fontsize=10)
    right.set(xlabel="step", ylim=(0, 1))
    right.set_title("total variation, student to teacher", loc="left", fontsize=10)
    right.legend()
    return figure


if __name__ == "__main__":
    picture().savefig("distillation.svg")
