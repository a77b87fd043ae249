"""Images as timm and torchvision read them, where they are installed."""

import numpy as np
import pytest
import torch
from PIL import Image

from minilearn import create_model, image_dls
from minilearn.cli.augment import Aug, ImageTransform
from minilearn.cli.build import timm_options
from minilearn.data.pipeline import Pipeline
from minilearn.nn.timm_models import data_config

timm = pytest.importorskip("timm", exc_type=ImportError)


def photo(width, height):
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "efficientnet_b0"])
@pytest.mark.parametrize("size", [(500, 375), (333, 500), (224, 224)])
def test_images_are_prepared_as_timm_prepares_them_for_evaluation(name, size):
    cfg = timm.data.resolve_data_config(model=timm.create_model(name))
    theirs = timm.data.create_transform(**cfg)(photo(*size))
    options = data_config(name, 3)
    assert options == {k: list(v) if isinstance(v := cfg[k], tuple) else v for k in options}
    ours = Pipeline(cfg["input_size"][1:], "crop", 3, **options)(photo(*size))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_the_command_line_takes_what_the_user_does_not_say_from_the_model():
    values = {"data": "x", "channels": 3, "size": 224, "crop_pct": 0.5}
    found = timm_options("timm/resnet18", values)
    assert found == {k: v for k, v in data_config("resnet18", 3).items() if k != "crop_pct"}
    assert timm_options("timm/resnet18", {"data": "x"}).keys() == {"mean", "std"}
    assert timm_options("timm/resnet18", {"data": "x", "normalize": False}) == {}


def test_names_of_the_hub_are_handed_to_timm_and_stored_by_their_architecture(monkeypatch):
    asked = []
    make, cfg = (
        timm.create_model,
        {"architecture": "resnet18", "mean": [0.25] * 3, "std": [0.5] * 3},
    )

    def create(name, **arguments):
        asked.append(name)
        model = make("resnet18", **arguments)
        model.pretrained_cfg = model.default_cfg = dict(cfg)
        return model

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(timm.models, "load_model_config_from_hf", lambda name: (cfg, "", {}))
    for name in ("hf-hub:some/name", "timm/hf-hub:some/name"):
        assert create_model(name, num_classes=5)._built_by == ("timm/resnet18", {"num_classes": 5})
    assert asked == ["hf-hub:some/name"] * 2
    assert data_config("hf-hub:some/name", 1) == {"mean": [0.25], "std": [0.5]}


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("channels", [1, 3])
def test_torchvision_decodes_training_images_into_tensors(tmp_path, orientation, channels):
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    photo(60, 40).save(tmp_path / "a" / "0.jpg", exif=exif)
    photo(60, 40).save(tmp_path / "a" / "1.png")
    seen = []

    def note(pixels):
        seen.append(pixels)
        return pixels

    options = {"decoder": "torchvision", "channels": channels, "size": 32, "valid": 0}
    dls = image_dls(tmp_path, 2, tfms=note, **options)
    list(dls.train)
    plain = []
    list(
        image_dls(
            tmp_path, 2, tfms=lambda im: plain.append(im) or im, **(options | {"decoder": "pil"})
        ).train
    )
    for ours, theirs in zip(seen, plain, strict=True):
        pixels = torch.from_numpy(np.array(theirs).reshape(*theirs.size[::-1], channels))
        assert ours.dtype == torch.uint8
        gap = (ours.permute(1, 2, 0).int() - pixels.int()).abs()
        assert gap.float().mean() < 0.5 and gap.max() <= 3
    cropped = ImageTransform(Aug(crop=0.5, jitter=0.2), 32)
    x, _ = next(iter(image_dls(tmp_path, 2, tfms=cropped, **options).train))
    assert x.shape == (2, channels, 32, 32)
