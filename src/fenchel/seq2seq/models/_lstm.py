"""The recurrent model: bidirectional LSTM layers, and an LSTM with global attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention._alpha import alpha_logit, learned
from ...mappings import AbstractMapping
from ..config._schema import ModelConfig
from ._bidirectional import bidirectional
from ._scan import Inputs, scan
from ._state import State, places

SHUT = 1e4
"""A gate this far from zero is shut or open, exactly; half precision holds it, too."""


class Encoder(nn.Module):
    """Layers of bidirectional LSTMs over padded sequences, without a look at the lengths' values.

    Beside its input a layer reads whether a place is padding. The weight of that closes the input
    gate and opens the forget gate, so that padding leaves a cell as it is: at zero before the
    backward direction begins, and as the last token left it after the forward one. These weights'
    gradients are zero.

    Args:
        inputs: the size of the input vectors.
        hidden: that of the outputs, half of it from each direction.
        layers: how many.
        dropout: the probability of dropping a unit between layers.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.LSTM(size + 1, hidden // 2, batch_first=True, bidirectional=True)
            for size in [inputs] + [hidden] * (layers - 1)
        )
        self.ignore_padding()

    @torch.no_grad()
    def ignore_padding(self) -> None:
        """Sets the weights of padding; for whoever draws new weights."""
        for name, weight in self.named_parameters():
            if "weight_ih" in name:
                shut, opened, candidate, output = weight[:, -1].chunk(4)
                shut.fill_(-SHUT)
                opened.fill_(SHUT)
                candidate.zero_()
                output.zero_()

    def forward(self, x: Tensor, kept: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The memory (B, S, H) and, of each layer, the states h and c after it, (layers, B, H).

        Args:
            x: (B, S, inputs).
            kept: (B, S), false at padding.
            lengths: (B,).
        """
        padding = (~kept).unsqueeze(-1).to(x.dtype)
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1)
        states, cells = [], []
        for place, layer in enumerate(self.layers):
            x = torch.cat([self.dropout(x) if place else x, padding], -1)
            x, backward, c = _run(layer, x)
            half = x.shape[-1] // 2
            forward = x[..., :half].gather(1, last.expand(-1, 1, half)).squeeze(1)
            states.append(torch.cat([forward, backward], -1))
            cells.append(torch.cat([c[0], c[1]], -1))
        return x, torch.stack(states), torch.stack(cells)


def _run(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The layer, in a recorded graph or a compiled one by `bidirectional`."""
    if x.is_cuda and (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()):
        return bidirectional(layer, x)
    x, (h, c) = layer(x)
    return x, h[1], c


class Recurrent(nn.Module):
    """An encoder, and an LSTM decoder with global attention, with or without input feeding.

        scores z_j = sᵀ W h_j, attentional vector o = tanh(W_o [s; Σ ŷ(z)_j h_j] + b)

    Args:
        config: of the model.
        source, target: the sizes of the vocabularies.

    References: peters2019sparse.
    """

    def __init__(self, config: ModelConfig, source: int, target: int) -> None:
        super().__init__()
        hidden, layers, self.rate = config.hidden, config.layers, config.dropout
        self.feeds = config.input_feeding
        self.source = nn.Embedding(source, config.embedding)
        self.target = nn.Embedding(target, config.embedding)
        self.encoder = Encoder(config.embedding, hidden, layers, config.dropout)
        self.rnn = nn.LSTM(
            config.embedding + hidden * self.feeds,
            hidden,
            layers,
            batch_first=True,
            dropout=config.dropout if layers > 1 else 0.0,
        )
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)
        self.encoder.ignore_padding()
        self._fixed = config.attention.build()
        self.alpha_logit: nn.Parameter | None = None
        if config.attention.learned_alpha:
            self.alpha_logit = nn.Parameter(alpha_logit(self._fixed, 1))

    @property
    def mapping(self) -> AbstractMapping:
        """The mapping of the attention, with the alpha that is learnt."""
        return self._fixed if self.alpha_logit is None else learned(self._fixed, self.alpha_logit)

    @property
    def target_weight(self) -> Tensor:
        """The target tokens' vectors, (V, size)."""
        return self.target.weight

    def start(self, source: Tensor, lengths: Tensor) -> State:
        kept = places(source, lengths)
        memory, h, c = self.encoder(self.source(source), kept, lengths)
        _, outer = self._parts()
        state = {
            "keys": self.key(memory),
            "values": functional.linear(memory, outer),
            "mask": torch.zeros_like(kept, dtype=memory.dtype).masked_fill(~kept, -torch.inf),
            "h": h.transpose(0, 1),
            "c": c.transpose(0, 1),
        }
        if self.feeds:
            state["vector"] = torch.zeros_like(h[-1])
        return state

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """The attentional vector (B, H), the weights (B, 1, S) and the next state."""
        x = self.target(tokens)
        if self.feeds:
            x = torch.cat([x, state["vector"]], -1)
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        top, (h, c) = self.rnn(x.unsqueeze(1), (h, c))
        vectors, weights = self._attend(state, top)
        vector = vectors.squeeze(1)
        state = {**state, "h": h.transpose(0, 1), "c": c.transpose(0, 1)}
        if self.feeds:
            state["vector"] = vector
        return vector, weights, state

    def forward(
        self, source: Tensor, lengths: Tensor, tokens: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor]:
        """The attentional vectors (B, T, H) and weights (B, T, 1, S) of all steps."""
        state = self.start(source, lengths)
        if self.feeds:
            vectors, found = self._scan(state, tokens)
            return vectors.transpose(0, 1), found.unsqueeze(2)
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        top, _ = self.rnn(self.target(tokens), (h, c))
        vectors, found = self._attend(state, top)
        return vectors, found.unsqueeze(2)

    def _parts(self) -> tuple[Tensor, Tensor]:
        """W_o's part for the decoder's state, and that for the memory."""
        inner, outer = self.combine.weight.chunk(2, 1)
        return inner, outer

    def _attend(self, state: State, top: Tensor) -> tuple[Tensor, Tensor]:
        """The attentional vectors (B, T, H) and weights (B, T, S) of the LSTM's outputs."""
        scores = torch.baddbmm(state["mask"].unsqueeze(1), top, state["keys"].transpose(1, 2))
        weights = self.mapping(scores)
        inner, _ = self._parts()
        start = functional.linear(top, inner, self.combine.bias)
        vectors = torch.baddbmm(start, weights.to(start.dtype), state["values"]).tanh()
        return functional.dropout(vectors, self.rate, self.training), weights

    def _scan(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The attentional vectors (T, B, H) and weights (B, T, S), each step fed to the next."""
        rnn, size = self.rnn, self.target.embedding_dim
        read, kept, bias = (
            [getattr(rnn, f"{name}_l{layer}") for layer in range(rnn.num_layers)]
            for name in ("weight_ih", "weight_hh", "bias_ih")
        )
        bias = [b + getattr(rnn, f"bias_hh_l{layer}") for layer, b in enumerate(bias)]
        fed = [read[0][:, size:], *read[1:]]
        gates = functional.linear(self.target(tokens.t()), read[0][:, :size], bias[0])
        recurrent = torch.stack([torch.cat(pair, 1) for pair in zip(fed, kept, strict=True)])
        (batch, steps), layers, hidden = tokens.shape, rnn.num_layers, rnn.hidden_size
        inputs = Inputs(
            gates,
            recurrent,
            torch.stack(bias)[1:],
            state["keys"],
            state["values"],
            state["mask"].unsqueeze(1),
            state["h"].transpose(0, 1),
            state["c"].transpose(0, 1),
            self._parts()[0],
            self.combine.bias,
            None if self.alpha_logit is None else 1 + torch.sigmoid(self.alpha_logit),
            self._factors(gates, steps, layers - 1, batch, hidden),
            self._factors(gates, steps, batch, hidden),
        )
        return scan(self._fixed, inputs)

    def _factors(self, like: Tensor, *shape: int) -> Tensor | None:
        """What dropout multiplies with, in training."""
        if not self.training or not self.rate:
            return None
        keep = 1 - self.rate
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(keep).div_(keep)
