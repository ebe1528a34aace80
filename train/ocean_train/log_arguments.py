"""The options of `ocean-train` for a log of sensors; imports nothing that `--help` must do without."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocean_train.logs import Request


def add(log: argparse._ArgumentGroup) -> None:
    """Adds the options."""
    log.add_argument(
        "--log",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="CSV, .npz, .parquet or ROS 2 bags; each begins an episode",
    )
    log.add_argument("--preview", action="store_true", help="say what is in the log, and stop")
    log.add_argument(
        "--features",
        nargs="+",
        default=[],
        metavar="NAME",
        help="columns to read, with all that are numbers if not given; of a bag, fields: /imu:angular_velocity.x",
    )
    log.add_argument(
        "--targets", nargs="+", default=[], metavar="NAME", help="columns to estimate; else the next row"
    )
    log.add_argument("--classes", metavar="NAME", help="the column of the class to tell at each step")
    log.add_argument("--episode", metavar="NAME", help="the column that says whose a row is")
    log.add_argument(
        "--time",
        metavar="NAME",
        help="the column of the time: dates, or numbers in the unit that is named here or by the column, as in "
        "'stamp [us]', else in seconds",
    )
    log.add_argument(
        "--csv",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="how a CSV is written, where that is not found by itself: separator, decimal, thousands, comment, "
        "encoding, header, names, skip or missing; may be given several times (docs/dialects.md)",
    )
    log.add_argument(
        "--no-header", action="store_true", help="no line of a CSV names the columns; they are c1, c2, ..."
    )
    log.add_argument("--rate", type=float, metavar="HZ", help="of a bag: steps a second")
    log.add_argument(
        "--max-age",
        type=float,
        default=1.0,
        metavar="S",
        help="hold a value so long; a longer gap ends the episode",
    )
    log.add_argument(
        "--validate-on",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="names of the episodes to validate on, such as 'drive/s3*'; if not given, the last tenth of the "
        "episodes, whole, and at least one",
    )


def request(args: argparse.Namespace) -> Request:
    """What the arguments ask for. Raises ValueError where they don't go together, or there is no log."""
    from ocean_runtime.dialect import parse_options
    from ocean_runtime.terminal import utf8

    from ocean_train.logs import Request

    if not args.log:
        raise ValueError("--preview looks at a log: give --log FILE")
    if args.text or args.corpus:
        raise ValueError("a model reads text or a log of sensors: give --log, or --text and --corpus")
    one, several = (args.classes, args.episode, args.time), (args.features, args.targets, args.csv)
    classes, episode, time = (None if text is None else utf8(text) for text in one)
    chosen, targets, csv = (tuple(map(utf8, texts)) for texts in several)
    dialect = parse_options(csv, args.no_header)
    return Request(tuple(args.log), chosen, targets, classes, episode, time, args.rate, args.max_age, dialect)
