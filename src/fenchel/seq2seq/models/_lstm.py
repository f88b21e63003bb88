"""The recurrent model: a bidirectional LSTM encoder, and an LSTM decoder with global attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention._alpha import alpha_logit, learned
from ...mappings import AbstractMapping
from ..config._schema import ModelConfig
from ._bidirectional import bidirectional
from ._scan import ScanInputs, scan
from ._state import State, token_mask

GATE_SATURATION = 1e4
"""A gate whose score is this far from zero is exactly 0 or 1. Half precision can represent it."""


class Encoder(nn.Module):
    """Layers of bidirectional LSTMs over padded sequences, which never read the lengths' values.

    A layer reads one more number per position: 1 at padding, else 0. Its weight closes the input
    gate and opens the forget gate, so padding does not change a cell. The backward direction
    reaches the last token with a cell of zero, and the forward direction ends with the cell of the
    last token. The gradients of these weights are zero.

    Args:
        inputs: the size of the input vectors.
        hidden: the size of the outputs, half of it from each direction.
        layers: the number of layers.
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
        """Sets the weights of padding; call it after initializing the weights anew."""
        for name, weight in self.named_parameters():
            if "weight_ih" in name:
                input_gate, forget_gate, candidate, output = weight[:, -1].chunk(4)
                input_gate.fill_(-GATE_SATURATION)
                forget_gate.fill_(GATE_SATURATION)
                candidate.zero_()
                output.zero_()

    def forward(
        self, x: Tensor, is_token: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The memory (B, S, H), and the last states h and c of each layer, (layers, B, H).

        Args:
            x: (B, S, inputs).
            is_token: (B, S), false at padding.
            lengths: (B,).
        """
        padding = (~is_token).unsqueeze(-1).to(x.dtype)
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1)
        states, cells = [], []
        for number, layer in enumerate(self.layers):
            x = torch.cat([self.dropout(x) if number else x, padding], -1)
            x, backward, c = _run_layer(layer, x)
            half = x.shape[-1] // 2
            forward = x[..., :half].gather(1, last.expand(-1, 1, half)).squeeze(1)
            states.append(torch.cat([forward, backward], -1))
            cells.append(torch.cat([c[0], c[1]], -1))
        return x, torch.stack(states), torch.stack(cells)


def _run_layer(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `bidirectional` returns; it runs only in CUDA graphs and in compiled code on a GPU."""
    if torch.compiler.is_exporting():
        from ._exported import run_layer

        return run_layer(layer, x)
    if x.is_cuda and (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()):
        return bidirectional(layer, x)
    x, (h, c) = layer(x)
    return x, h[1], c


def _run_step(rnn: nn.LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs (B, 1, H) for inputs (B, inputs), and the next states."""
    if torch.compiler.is_exporting():
        from ._exported import run_step

        return run_step(rnn, x, h, c)
    x, (h, c) = rnn(x.unsqueeze(1), (h, c))
    return x, h, c


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
        hidden, layers, self.dropout = config.hidden, config.layers, config.dropout
        self.input_feeding = config.input_feeding
        self.source_embedding = nn.Embedding(source, config.embedding)
        self.target_embedding = nn.Embedding(target, config.embedding)
        self.encoder = Encoder(config.embedding, hidden, layers, config.dropout)
        self.rnn = nn.LSTM(
            config.embedding + hidden * self.input_feeding,
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
        self._mapping = config.attention.build()
        self.alpha_logit: nn.Parameter | None = None
        if config.attention.learned_alpha:
            self.alpha_logit = nn.Parameter(alpha_logit(self._mapping, 1))

    @property
    def mapping(self) -> AbstractMapping:
        """The mapping of the attention, with its learnt alpha if there is one."""
        if self.alpha_logit is None:
            return self._mapping
        return learned(self._mapping, self.alpha_logit)

    @property
    def target_weight(self) -> Tensor:
        """The target tokens' vectors, (V, size)."""
        return self.target_embedding.weight

    def start(self, source: Tensor, lengths: Tensor) -> tuple[State, Tensor]:
        """The state before the first token, of source (B, S) and lengths (B,); and the memory, the
        encoder's outputs (B, S, H)."""
        is_token = token_mask(source, lengths)
        memory, h, c = self.encoder(self.source_embedding(source), is_token, lengths)
        mask = torch.zeros_like(is_token, dtype=memory.dtype).masked_fill(~is_token, -torch.inf)
        _, memory_weight = self._combine_weights()
        state = {
            "keys": self.key(memory),
            "values": functional.linear(memory, memory_weight),
            "mask": mask,
            "h": h.transpose(0, 1),
            "c": c.transpose(0, 1),
        }
        if self.input_feeding:
            state["vector"] = torch.zeros_like(h[-1])
        return state, memory

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """The attentional vector (B, H), the weights (B, 1, S) and the next state."""
        x = self.target_embedding(tokens)
        if self.input_feeding:
            x = torch.cat([x, state["vector"]], -1)
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        top, h, c = _run_step(self.rnn, x, h, c)
        vectors, weights = self._attend(state, top)
        vector = vectors.squeeze(1)
        state = {**state, "h": h.transpose(0, 1), "c": c.transpose(0, 1)}
        if self.input_feeding:
            state["vector"] = vector
        return vector, weights, state

    def forward(
        self, source: Tensor, lengths: Tensor, tokens: Tensor, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The attentional vectors (B, T, H), weights (B, T, 1, S) of all steps, and the memory."""
        state, memory = self.start(source, lengths)
        if self.input_feeding:
            vectors, weights = self._scan(state, tokens)
            return vectors.transpose(0, 1), weights.unsqueeze(2), memory
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        top, _ = self.rnn(self.target_embedding(tokens), (h, c))
        vectors, weights = self._attend(state, top)
        return vectors, weights.unsqueeze(2), memory

    def _combine_weights(self) -> tuple[Tensor, Tensor]:
        """The two halves of W_o: for the decoder's state, and for the memory."""
        state_weight, memory_weight = self.combine.weight.chunk(2, 1)
        return state_weight, memory_weight

    def _attend(self, state: State, top: Tensor) -> tuple[Tensor, Tensor]:
        """The attentional vectors (B, T, H) and weights (B, T, S) of the LSTM's outputs."""
        scores = torch.baddbmm(state["mask"].unsqueeze(1), top, state["keys"].transpose(1, 2))
        weights = self.mapping(scores)
        state_weight, _ = self._combine_weights()
        from_state = functional.linear(top, state_weight, self.combine.bias)
        vectors = torch.baddbmm(from_state, weights.to(from_state.dtype), state["values"]).tanh()
        return functional.dropout(vectors, self.dropout, self.training), weights

    def _scan(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The attentional vectors (T, B, H) and weights (B, T, S), with input feeding."""
        rnn, size = self.rnn, self.target_embedding.embedding_dim
        input_weights, state_weights, input_biases, state_biases = (
            [getattr(rnn, f"{name}_l{layer}") for layer in range(rnn.num_layers)]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        biases = [b + c for b, c in zip(input_biases, state_biases, strict=True)]
        embedded, first = self.target_embedding(tokens.t()), input_weights[0]
        input_gates = functional.linear(embedded, first[:, :size], biases[0])
        fed_weights = [first[:, size:], *input_weights[1:]]
        pairs = zip(fed_weights, state_weights, strict=True)
        (batch, steps), layers, hidden = tokens.shape, rnn.num_layers, rnn.hidden_size
        inputs = ScanInputs(
            input_gates=input_gates,
            recurrent=torch.stack([torch.cat(pair, 1) for pair in pairs]),
            biases=torch.stack(biases)[1:],
            keys=state["keys"],
            values=state["values"],
            mask=state["mask"].unsqueeze(1),
            h=state["h"].transpose(0, 1),
            c=state["c"].transpose(0, 1),
            state_weight=self._combine_weights()[0],
            bias=self.combine.bias,
            alpha=None if self.alpha_logit is None else 1 + torch.sigmoid(self.alpha_logit),
            layer_dropout=self._dropout_factors(input_gates, steps, layers - 1, batch, hidden),
            vector_dropout=self._dropout_factors(input_gates, steps, batch, hidden),
        )
        return scan(self._mapping, inputs)

    def _dropout_factors(self, like: Tensor, *shape: int) -> Tensor | None:
        """What dropout multiplies with in training: 0, or 1 over the probability of keeping."""
        if not self.training or not self.dropout:
            return None
        keep = 1 - self.dropout
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(keep).div_(keep)
