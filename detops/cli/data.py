# SPDX-License-Identifier: MIT
"""`detops data`: checks datasets before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import PartialFailure
from .options import ClassMap, Images, load_config_file, parse_class_map

app = typer.Typer(help="Check datasets before training.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Check datasets before training."""


@app.command()
def check(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="See detops.data.open_dataset.")
    ],
    config: Annotated[
        Path | None, typer.Option(help="Config of a detector whose anchors are compared.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the images and problems.txt.")] = Path(
        "data_check"
    ),
    images: Images = None,
    class_map: ClassMap = None,
) -> None:
    r"""Report problems in datasets, and show what they contain.

    Problems are missing or truncated images, images of the wrong size, boxes without area or
    outside their image, unknown classes, duplicate ids and objects, and duplicate images, in one
    dataset or in two. The exit status is 1 if there are any.

    For each dataset, the command writes a sheet of samples. With --config it also writes a
    histogram of box sizes, with the anchors that they match.

    For example:

        detops data check my/train.json my/val.json

        detops data check 'my/data.yaml?split=train' 'my/data.yaml?split=val' \
            --output checked

        detops data check tree_crowns/train.json \
            --config configs/tree_crowns.yaml
    """
    from ..engine.data_check import check_data
    from .consoles import out

    cfg = load_config_file(config)
    count = check_data(data, output, out, cfg, images, parse_class_map(class_map))
    if count:
        raise PartialFailure(f"{count} problems, see {output / 'problems.txt'}")
    out.print("no problems")
