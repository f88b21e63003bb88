"""Every key of a configuration, with its type, its bounds and its default."""

from __future__ import annotations

from os.path import realpath
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ... import mappings
from ..._choices import Device, Metric
from ..._search_sizes import too_large
from ._data import DataConfig, EvaluationConfig
from ._section import Section

Probability = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(gt=0, le=10_000_000)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MappingConfig(Section):
    """A registered mapping by name, with its own options. A bare name stands for the defaults.

    >>> MappingConfig.model_validate({"mapping": "entmax", "alpha": 1.5}).build()
    Entmax(gamma=1.0, alpha=1.5)

    Args:
        mapping: a name of `fenchel.mappings.names()`.
        learned_alpha: whether to learn entmax's alpha in the attention, one per head, as
            α = 1 + sigmoid(parameter).
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    mapping: str
    learned_alpha: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"mapping": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_mapping(self) -> MappingConfig:
        try:
            self.build()
        except (TypeError, ValueError) as error:
            raise ValueError(str(error)) from None
        if self.learned_alpha and self.mapping != "entmax":
            raise ValueError(f"`learned_alpha` is for entmax, got {self.mapping}.")
        return self

    @property
    def options(self) -> dict[str, float]:
        """The given options of the mapping."""
        return dict(self.model_extra or {})

    def build(self) -> mappings.AbstractMapping:
        """The mapping with its options."""
        return mappings.get(self.mapping, **self.options)


COPIED_TOKENS = (
    ("characters", "characters"),
    ("characters", "none"),
    *((source, target) for source in ("words", "none") for target in ("words", "none")),
)
"""The tokens of source and target with which a token of the source may be one of the target."""

ENTMAX_15 = MappingConfig.model_validate({"mapping": "entmax", "alpha": 1.5})


class ModelConfig(Section):
    """The architecture, and the mappings of its attention and its output.

    Args:
        architecture: "lstm", with global attention, or "transformer".
        embedding: the size of the LSTM's token vectors; the Transformer's have size `hidden`.
        hidden: the size of the hidden states (the Transformer's d_model).
        layers: the number of encoder layers, and of decoder layers.
        heads: the number of the Transformer's attention heads; the LSTM has one.
        feedforward: the inner size of the Transformer's feedforward layers; 4·hidden by default.
        dropout: the probability of dropping a unit.
        attention: the mapping of the attention weights.
        output: the mapping of the output probabilities, which also gives the loss.
        input_feeding: whether the LSTM decoder reads its last attentional vector.
        tie_embeddings: whether the output layer shares the weights of the target embedding.
        copy_source: whether the model may copy tokens of the source, unknown ones too. It needs
            the same tokens on both sides: characters, or words or none; a source of characters
            without spaces may have a target of none.

    >>> config = ModelConfig(hidden=64, layers=1, output="sparsemax")
    >>> config.architecture, config.output.build()
    ('lstm', Sparsemax(gamma=1.0))
    """

    architecture: Literal["lstm", "transformer"] = "lstm"
    embedding: Size = 300
    hidden: Size = 300
    layers: Annotated[int, Field(gt=0, le=1000)] = 2
    heads: Size = 4
    feedforward: Annotated[int, Field(gt=0, le=100_000_000)] = 1200
    dropout: Probability = 0.3
    attention: MappingConfig = ENTMAX_15
    output: MappingConfig = ENTMAX_15
    input_feeding: bool = True
    tie_embeddings: bool = False
    copy_source: bool = False

    @model_validator(mode="before")
    @classmethod
    def _default_feedforward(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "feedforward" in value:
            return value
        hidden = value.get("hidden", 300)
        return {**value, "feedforward": 4 * hidden if isinstance(hidden, int) else 1}

    @model_validator(mode="after")
    def _check_sizes(self) -> ModelConfig:
        if self.architecture == "transformer" and self.hidden % self.heads:
            raise ValueError(
                f"`hidden` must be a multiple of `heads` ({self.heads}), got {self.hidden}."
            )
        if self.architecture == "lstm" and self.hidden % 2:
            raise ValueError(
                f"`hidden` must be even for the two directions of the LSTM, got {self.hidden}."
            )
        if self.tie_embeddings and self.architecture == "lstm" and self.embedding != self.hidden:
            raise ValueError(
                f"`tie_embeddings` needs `embedding` equal to `hidden` ({self.hidden}), "
                f"got {self.embedding}."
            )
        if self.output.learned_alpha:
            raise ValueError("`learned_alpha` is for the attention; give the output a fixed alpha.")
        if self.output.build().total != 1.0:
            raise ValueError(
                f"`output` must be a mapping that sums to one; {self.output.mapping} does not."
            )
        return self


class TrainingConfig(Section):
    """How a model is trained.

    Args:
        folder: of the model, its checkpoint and its log.
        start_from: the folder of a model whose weights are the first ones; None for random ones.
            The section `model` must be that model's, but for `dropout` and the mappings. Its
            vocabularies are kept, and get the new tokens of the training pairs.
        seed: for the weights, the order of the pairs and dropout.
        batch_size: the number of pairs in a batch, on each process.
        gradient_accumulation: how many batches' gradients are added up before a step.
        epochs: training ends after this many passes over the data.
        steps: training ends after this many steps, if given.
        minutes: training ends after this many minutes, if given.
        optimizer: "adam", or "adamw" with `weight_decay`.
        weight_decay: of AdamW: a step multiplies weights by 1 − learning rate · weight_decay; not
            biases, layer norms, embeddings, an output layer that shares one, or the input weights
            of the LSTM's encoder, one column of which closes its gates at padding.
        learning_rate: the largest one.
        lr_schedule: after the warm-up, "plateau" multiplies the learning rate by `lr_decay` when
            the validation loss stops improving, "inverse_square_root" by √(warmup_steps/step), and
            "cosine" lets it fall to `min_lr_ratio` at the last step.
        warmup_steps: the learning rate rises linearly for so many steps. Set it for
            "inverse_square_root", which takes 0 for 1: it then falls from the first step.
        lr_decay: multiplies the learning rate on a plateau.
        lr_patience: how many validations without a better loss are waited for before that.
        min_lr_ratio: the lowest learning rate, as a share of the largest one.
        label_smoothing: ε, below 1; targets are mixed with ε times the uniform distribution over
            the tokens. It works against sparse outputs. The validation loss has none.
        max_grad_norm: a gradient of a larger norm is scaled down to it.
        early_stopping_patience: how many validations without a better `metric` end training.
        metric: chooses the best model: "loss", "token_accuracy", or a measure of the outputs of
            greedy decoding, such as "accuracy", "PER" or "BLEU".
        validate_every: the number of epochs or steps between validations.
        validate_unit: "epochs" or "steps".
        checkpoint_every: the number of steps between checkpoints; each validation writes one, too.
        average_checkpoints: at the end the mean of the weights of so many of the best validated
            models is validated, and is the model if it is better than the best of them.
        log_every: the number of steps in a line of the log.
        device: "auto" is a GPU if there is one.
        precision: "tf32" rounds the factors of matrix products on a GPU, "bfloat16" is mixed
            precision.
        cuda_graphs: whether a single process on a GPU replays CUDA graphs of its steps. This is
            several times as fast if steps are small. Lengths are rounded up.
        distributed: whether each of torchrun's processes has the whole model (ddp), or a shard of
            it (fsdp).
    """

    folder: str = "model"
    start_from: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] = 64
    gradient_accumulation: PositiveInt = 1
    epochs: PositiveInt = 100
    steps: PositiveInt | None = None
    minutes: PositiveFloat | None = None
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: NonNegativeFloat = 0.01
    learning_rate: PositiveFloat = 0.001
    lr_schedule: Literal["plateau", "inverse_square_root", "cosine"] = "plateau"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    lr_decay: Annotated[float, Field(gt=0, lt=1)] = 0.5
    lr_patience: Annotated[int, Field(ge=0)] = 4
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    label_smoothing: Probability = 0.0
    max_grad_norm: PositiveFloat = 5.0
    early_stopping_patience: PositiveInt = 15
    metric: Metric = "accuracy"
    validate_every: PositiveInt = 1
    validate_unit: Literal["epochs", "steps"] = "epochs"
    checkpoint_every: PositiveInt = 500
    average_checkpoints: Annotated[int, Field(gt=0, le=1000)] = 1
    log_every: PositiveInt = 50
    device: Device = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    cuda_graphs: bool = True
    distributed: Literal["ddp", "fsdp"] = "ddp"

    @model_validator(mode="after")
    def _check_folders(self) -> TrainingConfig:
        if self.start_from is not None and realpath(self.start_from) == realpath(self.folder):
            raise ValueError(f"`start_from` must be another folder than `folder`, {self.folder}.")
        return self


class SearchConfig(Section):
    """The defaults of decoding.

    Args:
        beam: the number of hypotheses that are kept, at most 8192.
        max_length: the largest number of tokens in an output, at most 10,000.
        batch_size: the number of inputs decoded at once, at most 65,536.
    """

    beam: PositiveInt = 5
    max_length: PositiveInt = 100
    batch_size: PositiveInt = 256

    @field_validator("*")
    @classmethod
    def _check_bound(cls, value: int, info: ValidationInfo) -> int:
        if reason := too_large(str(info.field_name), value):
            raise ValueError(reason)
        return value


class Config(Section):
    """The whole configuration: model, data, training, evaluation and search.

    >>> data = {"task": "text", "train": ["train.tsv"], "validation": ["dev.tsv"]}
    >>> config = Config(data=data, model={"architecture": "transformer", "hidden": 64})
    >>> config.model.heads, config.search.beam
    (4, 5)
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    search: SearchConfig = SearchConfig()

    @model_validator(mode="after")
    def _check_copied_tokens(self) -> Config:
        sides = self.data.tokens.source, self.data.tokens.target
        is_checked = self.model.copy_source and self.data.task != "inflection"
        if is_checked and sides not in COPIED_TOKENS:
            raise ValueError(
                "`model.copy_source` is for characters or words; subwords spell unknown words as "
                "they are. `data.tokens.source` and `data.tokens.target` must be the same "
                "(characters, words or none), words and none, or characters and none; got "
                f"{sides[0]} and {sides[1]}. Set `data.tokens`, or `model.copy_source: false`."
            )
        return self
