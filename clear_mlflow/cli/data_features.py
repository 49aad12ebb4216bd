"""``clear-mlflow data features``: one pass through a frozen backbone, stored for linear heads."""

from __future__ import annotations

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import Maybe, dataset_args_option
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
@click.option(
    "--backbone",
    required=True,
    metavar="NAME",
    help="A torchvision classification model, for example resnet50, or timm: and the name of a "
    "model of timm's; its head is left out.",
)
@click.option(
    "--weights",
    default="DEFAULT",
    metavar="PATH|DEFAULT|none",
    help="A state dict; DEFAULT: the library's own, downloaded; none: random ones, to try things "
    "out.",
)
@click.option(
    "--dataset",
    default="clear10",
    metavar="NAME",
    help="The dataset in DIR, as for train; digits and digits-writers are embedded and need no "
    "DIR.",
)
@dataset_args_option
@click.option(
    "--device",
    type=click.Choice([AUTO, "cpu", "cuda"]),
    default=AUTO,
    help="Where the backbone runs; auto: cuda where there is one.",
)
@click.option(
    "--name",
    type=Maybe(_name),
    default=AUTO,
    metavar="NAME",
    help="What train's --features calls them; auto: the backbone's name, timm- before those of "
    "timm's.",
)
@click.option(
    "--protocol",
    type=click.Choice(list(PROTOCOLS)),
    default="iid",
    help="As for train; streaming: the features of all training images, and of no others.",
)
@click.option(
    "--split",
    default=AUTO,
    metavar="N",
    help="As for train; under iid, a number leaves a released test set alone.",
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
