"""``clear-mlflow data features``: one pass through a frozen backbone, stored for linear heads."""

from __future__ import annotations

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import dataset_args_option, option
from clear_mlflow.core.matrix import PROTOCOLS
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.values import feature_name


def _name(text: str) -> str:
    if text == NONE:
        raise ValueError("by that train means no features; expected another name")
    return feature_name(text)


@click.command(
    cls=Command,
    examples=(
        "clear-mlflow data features ~/data/clear10 --backbone resnet50",
        "clear-mlflow data features ~/data/clear10 --backbone timm:vit_small_patch14_dinov2",
    ),
)
@click.argument("folder", metavar="[DIR]", default=AUTO)
@option(
    "--backbone",
    "NAME",
    "A torchvision classification model, or timm: and one of timm's; its head is left out.",
    required=True,
)
@option(
    "--weights",
    "PATH|DEFAULT|none",
    "A state dict; DEFAULT: the library's own, downloaded; none: random ones, to try things out.",
    default="DEFAULT",
)
@option("--dataset", "NAME", "The dataset in DIR, as for train.", default="clear10")
@dataset_args_option
@option("--device", [AUTO, "cpu", "cuda"], "auto: cuda where there is one.")
@option(
    "--name",
    "NAME",
    "What train's --features calls them; auto: the backbone's name, timm-NAME of timm's.",
    default=AUTO,
    parse=_name,
)
@option(
    "--protocol",
    PROTOCOLS,
    "As for train; streaming: the features of all training images, and of no others.",
)
@option(
    "--split",
    "N",
    "As for train; under iid, a number leaves a released test set alone.",
    default=AUTO,
    type=str,
)
def features(
    folder: str,
    backbone: str,
    weights: str,
    dataset: str,
    dataset_args: str,
    device: str,
    name: str | None,
    protocol: str,
    split: str,
) -> None:
    """Compute the features of all images in DIR, for 'train --features NAME'.

    They are stored in the cache folder, by the images' content: running it again takes no longer
    than reading the images' files, and an interrupted extraction is resumed.
    """
    name = name or _name(backbone.replace(":", "-"))
    from clear_mlflow.data.splits import check_protocol

    check_protocol(protocol, split)

    import torch

    from clear_mlflow.cli.data import Steps
    from clear_mlflow.core.cache_dir import default_cache_dir
    from clear_mlflow.data import load_stream
    from clear_mlflow.data.fetching.download import clear_folder
    from clear_mlflow.data.sources import CLEAR
    from clear_mlflow.learning.arguments import named_dataset
    from clear_mlflow.learning.device import resolve_device
    from clear_mlflow.learning.inference.extract import extract, load_backbone

    if folder in CLEAR:
        dataset, folder = folder, AUTO
    dataset, arguments = named_dataset(dataset, folder, dataset_args)
    if folder == AUTO and dataset in CLEAR:
        with Steps(of_bytes=True) as progress:
            clear_folder(dataset, progress.tell)
    place = torch.device(resolve_device(device))
    cache_dir = default_cache_dir()
    frozen = load_backbone(backbone, weights)
    stream = load_stream(
        dataset,
        folder,
        cache_dir=cache_dir,
        arguments=arguments,
        protocol=protocol,
        split=split,
    )
    with Steps() as progress:
        stored = extract(
            stream,
            frozen,
            name=name,
            cache_dir=cache_dir,
            device=place,
            on_image=lambda done, total: progress.tell(f"features {name}", done, total),
        )
    click.echo(f"features {name} of {stream.name}: {stored}")
