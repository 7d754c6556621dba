"""Which parameters train. Full, decoder-only and LoRA differ here and nowhere else."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import WhisperForConditionalGeneration

from whispertune.errors import TrainingError
from whispertune.recipe import TrainSection

LORA_TARGETS = r".*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"
"""Every linear layer of both stacks: more than attention alone, since Whisper's small sizes have few of them
(Hu et al. 2021 adapt attention only; Dettmers et al. 2023, arXiv 2305.14314, find all layers needed)."""


@dataclass(frozen=True)
class Tuned:
    """A model of which some parameters train."""

    model: WhisperForConditionalGeneration
    """What is run: with LoRA, the same model with adapted layers."""
    parameters: dict[str, torch.nn.Parameter]
    """Those that train, by name, float32."""
    adapter: PeftModel | None = None

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Put a checkpoint's weights in place.

        Raises:
            TrainingError: they are not this model's.
        """
        theirs = {(name, weight.shape) for name, weight in weights.items()}
        ours = {(name, parameter.shape) for name, parameter in self.parameters.items()}
        differing = sorted({name for name, _ in theirs ^ ours})
        if differing:
            raise TrainingError(
                f"the checkpoint does not fit the model: {len(differing)} parameters differ, "
                f"first {differing[0]}",
                "start a new run with another --run",
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the trained parameters on the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()}

    def merged(self) -> WhisperForConditionalGeneration:
        """A plain model with these weights, LoRA merged in float32 on the CPU: exact, whatever trained it."""
        if self.adapter is None:
            return copy.deepcopy(self.model).to("cpu").eval()
        return copy.deepcopy(self.adapter).to("cpu").merge_and_unload().eval()


def prepare(model: WhisperForConditionalGeneration, section: TrainSection) -> Tuned:
    """Freeze what does not train. The model is changed in place; `Tuned.merged` gives a plain one back.

    Weights stay float32 under autocast: an update of 1e-5 added to a bf16 weight is rounded away.
    """
    model.float()
    adapter = None
    # Whisper's sinusoidal positions of the encoder are constants of the architecture and never train.
    fixed = "model.encoder.embed_positions.weight"
    if section.method == "lora":
        config = LoraConfig(
            r=section.lora_rank,
            lora_alpha=section.lora_alpha,
            lora_dropout=section.lora_dropout,
            target_modules=LORA_TARGETS,
        )
        # The initial A matrices are random; a resumed run must build the same ones before it loads.
        torch.manual_seed(section.seed)
        with warnings.catch_warnings():
            # peft asks transformers by an old name; nothing that our user could mend.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            adapter = get_peft_model(model, config)
        model = adapter.get_base_model()
    else:
        for name, parameter in model.named_parameters():
            frozen = name == fixed or (section.method == "decoder" and name.startswith("model.encoder."))
            parameter.requires_grad_(not frozen)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert parameters and all(p.dtype == torch.float32 for p in parameters.values())
    return Tuned(model, parameters, adapter)
