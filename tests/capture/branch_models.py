"""Models with branches: transformers' own from tiny configurations, and small modules.

transformers is imported where a model is built: collecting the tests doesn't need it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = {
    "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 6, "projection_dim": 8, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "projection_dim": 8,
}  # fmt: skip
STACK = {"layers": 2, "attention_heads": 2, "ffn_dim": 16}
# The token that stands for a patch of an image.
IMAGE = 31
WIDTH = 4


def clip() -> nn.Module:
    """CLIP with its contrastive loss."""
    import transformers

    class Clip(transformers.CLIPModel):
        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            return super().forward(input_ids, pixel_values, return_loss=True).loss

    return Clip(transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8))


def whisper() -> nn.Module:
    import transformers

    layers = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in STACK.items()}
    config = transformers.WhisperConfig(
        vocab_size=32, num_mel_bins=4, d_model=8, max_source_positions=4, max_target_positions=8, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **layers,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def blip() -> nn.Module:
    import transformers

    text = {**TEXT, "encoder_hidden_size": 8, "sep_token_id": 3}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, projection_dim=8)
    return transformers.BlipForConditionalGeneration(config)


def llava() -> nn.Module:
    """A vision tower, a projector and a language model that reads images in the place of a token."""
    import transformers

    text = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(**{**VISION, "num_hidden_layers": 3})
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_id=IMAGE)
    model = transformers.LlavaForConditionalGeneration(config)
    # It takes what the layer before the last makes.
    for part in (model.model.vision_tower.encoder.layers[-1], model.model.vision_tower.post_layernorm):
        part.requires_grad_(False)
    return model


def images_among_tokens(samples: int) -> dict[str, Tensor]:
    """An image's four patches are four tokens of a sample."""
    made = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, IMAGE, (samples, 7), generator=made)
    tokens[:, 1:5] = IMAGE
    return {
        "input_ids": tokens, "labels": tokens.masked_fill(tokens == IMAGE, -100),
        "pixel_values": torch.randn(samples, 3, 8, 8, generator=made),
    }  # fmt: skip


def images_and_tokens(samples: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(0, 32, (samples, 6), generator=made),
        "pixel_values": torch.randn(samples, 3, 8, 8, generator=made),
    }


def described_images(samples: int) -> dict[str, Tensor]:
    found = images_and_tokens(samples)
    return {**found, "labels": found["input_ids"]}


def speech(samples: int) -> dict[str, Tensor]:
    return {"input_features": torch.zeros(samples, 4, 8), "labels": torch.ones(samples, 6, dtype=torch.long)}


class Layer(nn.Module):
    """x + linear(tanh(x)); of several inputs it takes the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *values: Tensor) -> Tensor:
        x = sum(values[1:], values[0])
        return x + self.linear(torch.tanh(x))


def layers() -> nn.ModuleList:
    return nn.ModuleList(Layer() for _ in range(2))


def chain(stack: nn.ModuleList, value: Tensor) -> Tensor:
    for layer in stack:
        value = layer(value)
    return value


class EmbeddedFirst(nn.Module):
    """What three towers read is embedded before the first of them runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({"a": Layer(), "b": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())})
        self.scale, self.a, self.b, self.c = nn.Parameter(torch.ones(WIDTH)), layers(), layers(), layers()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        starts = self.embed["a"](x), self.embed["b"](y), x * self.scale
        ends = [chain(tower, start) for tower, start in zip((self.a, self.b, self.c), starts, strict=True)]
        return torch.cat(ends, -1).square().mean()


class Joined(nn.Module):
    """Two towers and a trunk of layers. How they join is a subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.trunk = layers(), layers(), layers()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.join(chain(self.a, x), chain(self.b, y)).square().mean()


class Sum(Joined):
    """The trunk's first layer alone reads the sum."""

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return chain(self.trunk, a + b)


class SumReadTwice(Joined):
    """All layers of the trunk read the sum."""

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        both = a + b
        return self.trunk[1](self.trunk[0](both), both)


class SumReadBySides(Joined):
    """Two layers that don't read each other read the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.side = layers(), layers()

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        both = (a + b).tanh()
        return chain(self.trunk, both) + chain(self.side, both)


class Ends(Joined):
    """What follows each tower reads no parameter and runs after both; the trunk goes on from the second."""

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.tanh(), b.sin()
        return chain(self.trunk, b) + a


class TwoProjections(Joined):
    """Both towers' ends are projected after the second, and all layers of the trunk depend on both."""

    def __init__(self) -> None:
        super().__init__()
        self.of_a, self.of_b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.of_a(a), self.of_b(b)
        return self.trunk[1](self.trunk[0](a, b), a)


class ReadEarly(nn.Module):
    """Of a backbone of three layers the last, which is frozen, isn't read."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.a = Layer(), nn.ModuleList(Layer() for _ in range(3))
        self.a[2].requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        states = [self.start(x)]
        for layer in self.a:
            states.append(layer(states[-1]))
        return (states[-2] - y).square().mean()


class Convolutions(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class UNet(nn.Module):
    """Two levels down, a middle, two up, each of which reads what its level down made (Ronneberger et al., 2015). The
    levels are in lists, or children of the root."""

    def __init__(self, lists: bool) -> None:
        super().__init__()
        down, up = [Convolutions(1, 4), Convolutions(4, 4)], [Convolutions(8, 4), Convolutions(8, 4)]
        if lists:
            self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
        else:
            (self.down0, self.down1), (self.up0, self.up1) = down, up
        self.middle, self.out, self.lists = Convolutions(4, 4), nn.Conv2d(4, 1, 1), lists

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        skips = []
        for level in self.down if self.lists else (self.down0, self.down1):
            x = level(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for level in self.up if self.lists else (self.up0, self.up1):
            x = level(torch.cat([functional.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return (self.out(x) - y).square().mean()


class Children(nn.Module):
    """Towers that are children of the root; both run one projection, and the root multiplies what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.project, self.image, self.joint = Layer(), Layer(), Layer(), Layer()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        text, image = self.project(self.text(x)), self.project(self.image(y))
        return self.joint(functional.normalize(text, dim=-1) * image).square().mean()


def vectors(samples: int) -> dict[str, Tensor]:
    return {name: torch.zeros(samples, WIDTH) for name in "xy"}


def pictures(samples: int) -> dict[str, Tensor]:
    return {name: torch.zeros(samples, 1, 8, 8) for name in "xy"}
