"""53 ways in which programs write one and the same table, and what becomes of each.

    python tests/dialects.py FOLDER     writes the files
    python tests/dialects.py            prints the table of docs/dialects.md

`tests/train/test_dialects.py` reads each by `ocean-train --preview` and `ocean-run`, and holds what `became` says.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROWS = 40
START = 1_750_000_000
NAMES = ("t", "a", "b")
"""Those of `small_models.scalar_model`, and the time."""
Format = Callable[[float], str]


def truth() -> list[tuple[float, float, float]]:
    """Seconds, a, b: numbers with a short text, a above 1,000, b of both signs."""
    return [(round(0.02 * i, 2), 1234.5 + 0.25 * (i * i % 17), -2.5 + 0.125 * i) for i in range(ROWS)]


HOLES = tuple(i for i, (_, a, _) in enumerate(truth()) if a == 1238.5)


@dataclass(frozen=True)
class Case:
    """One way."""

    name: str
    """Of the file."""
    what: str
    """A line of the table."""
    content: bytes
    refused: str = ""
    """A part of the sentence; empty where it is read."""
    refused_by_run: str = ""
    """Where `ocean-run` says something else."""
    options: tuple[str, ...] = ()
    """What reads it where it is refused, or read otherwise."""
    wrong: bool = False
    """Whether it is read otherwise without the options, with a line that says so, of which `refused` is a part."""
    time: str = "t"
    missing: tuple[int, ...] = ()
    """Rows, from 0, whose a the file lacks."""

    @property
    def became(self) -> str:
        """What the table says."""
        told = " ".join(f"`{word}`" if " " not in word else f"`'{word}'`" for word in self.options)
        if not self.refused:
            return f"read with {told}" if told else "read"
        found = f"read, with the line “{self.refused}”" if self.wrong else f"refused: “{self.refused}”"
        return f"{found}; read with {told}" if told else found


def number(value: float) -> str:
    return f"{value:g}" if value == round(value, 3) else repr(value)


def lines(
    joint: str = ",",
    *,
    heading: Iterable[str] = NAMES,
    each: Format = number,
    before: str = "",
    after: str = "",
    first: str = "",
    last: str = "",
    clock: Format | None = None,
    end: str = "\n",
) -> str:
    """The table as text; first and last stand around each row, before and after around all."""
    rows = [joint.join([(clock or each)(t), each(a), each(b)]) for t, a, b in truth()]
    head = [first + joint.join(heading) + last] if heading else []
    return before + end.join([*head, *(first + row + last for row in rows)]) + end + after


def stamp(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(START, datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def with_row(text: str, place: int, row: str) -> str:
    found = text.split("\n")
    return "\n".join([*found[:place], row, *found[place:]])


def thousands(mark: str, point: str = ".") -> Format:
    return lambda value: f"{value:,}".replace(",", "\0").replace(".", point).replace("\0", mark)


def quoted(mark: str) -> Format:
    return lambda value: f"{mark}{number(value)}{mark}"


def fixed(value: float) -> str:
    return f"{value:>14.4f}"


def fortran(value: float) -> str:
    return f"{value:.6E}".replace("E", "D")


def cases() -> list[Case]:
    """All of them."""
    comma = lines()
    nanoseconds: Format = lambda t: str(START * 10**9 + round(t * 1e9))  # noqa: E731
    return [
        # Blanks, separators, line breaks
        Case(
            "fixed-width",
            "columns of a fixed width, filled with blanks",
            lines("", heading=[f"{n:>14}" for n in NAMES], each=fixed).encode(),
        ),
        Case("trailing-tab", "tabs, and one more at the end of each line", lines("\t", last="\t").encode()),
        Case("trailing-comma", "a comma at the end of each line", lines(last=",").encode()),
        Case(
            "trailing-comma-rows",
            "a comma at the end of each row, not of the names",
            (",".join(NAMES) + "\n" + lines(heading=(), last=",")).encode(),
        ),
        Case(
            "plus-and-blanks",
            "a sign before every number, blanks around each cell",
            lines(" , ", each=lambda v: f"{v:+}").encode(),
        ),
        Case("unit-separator", "the control character 0x1F as separator", lines("\x1f").encode()),
        Case(
            "double-separator",
            "separators of two characters, `::`",
            lines("::").encode(),
            "has no column 't'; its columns are t::a::b",
        ),
        Case(
            "colon", "colons as separators", lines(":").encode(), "has no column 't'; its columns are t:a:b"
        ),
        Case("cr-only", "line breaks of a carriage return alone", lines(end="\r").encode()),
        Case(
            "mixed-ends",
            "line breaks LF and CRLF by turns",
            "".join(line + ("\r\n" if i % 2 else "\n") for i, line in enumerate(comma.splitlines())).encode(),
        ),
        Case(
            "blank-lines",
            "blank lines before the names and between rows",
            ("\n\n" + comma.replace("\n", "\n\n")).encode(),
        ),
        # Quotes
        Case(
            "all-quoted",
            "every cell in double quotes",
            lines(heading=[f'"{n}"' for n in NAMES], each=quoted('"')).encode(),
        ),
        Case(
            "single-quotes",
            "every cell in single quotes",
            lines(heading=[f"'{n}'" for n in NAMES], each=quoted("'")).encode(),
            "has no column 't'; its columns are 't', 'a', 'b'",
        ),
        Case(
            "line-break-in-a-name",
            "a line break within a quoted name",
            lines(heading=("t", '"a\nin m"', "b")).encode(),
            "does not begin with a line of CSV",
        ),
        # What stands around the table
        Case(
            "pandas-index",
            "row numbers in a first column without a name (pandas)",
            "".join(
                f"{'' if i == 0 else i - 1},{line}\n" for i, line in enumerate(comma.splitlines())
            ).encode(),
        ),
        Case(
            "r-row-names",
            "row names in a first column that the first line does not count (R's write.table)",
            "".join(
                (f'"{i}" ' if i else "") + line + "\n" for i, line in enumerate(lines(" ").splitlines())
            ).encode(),
            "row 1 has 4 cells where the first line names 3 columns",
        ),
        Case(
            "two-headings",
            "two lines of names (pandas' MultiIndex)",
            lines(before="robot,robot,arm\n").encode(),
            "has two columns named 'robot'",
            options=("skip=1",),
        ),
        Case(
            "heading-again",
            "the names again in the middle, as where files were joined",
            with_row(comma, 20, ",".join(NAMES)).encode(),
            "row 20 has the names of the columns again",
        ),
        Case(
            "footer",
            "a line of words at the end",
            lines(after="end of log\n").encode(),
            "row 41 has 1 cells where the first line names 3 columns",
        ),
        Case(
            "footer-sum",
            "a row of sums at the end",
            lines(after="Total,50000,-20\n").encode(),
            "row 41 has 'Total' in column 't', which is not a number",
        ),
        Case(
            "cut-off",
            "a last row that was cut off within a number",
            comma[:-2].encode(),
            "it ends without a line break: if it was cut off, its last row may be wrong",
            wrong=True,
        ),
        Case(
            "cut-cell",
            "a last row that was cut off after a separator",
            (comma + "0.8,").encode(),
            "row 41 has 2 cells where the first line names 3 columns",
        ),
        Case(
            "zeros-at-the-end",
            "zero bytes at the end, as after a power failure",
            comma.encode() + bytes(512),
            "holds zero bytes, as a file does that a power failure cut off",
        ),
        Case(
            "control-z",
            "the byte 0x1A at the end (DOS)",
            comma.encode() + b"\x1a",
            "row 41 has 1 cells where the first line names 3 columns",
        ),
        Case(
            "labview",
            "LabVIEW's lines before ***End_of_Header***",
            lines(
                "\t",
                before="LabVIEW Measurement\t\nSeparator\tTab\nDecimal_Separator\t.\n***End_of_Header***\t\n",
            ).encode(),
            "3 cells where the first line names 2 columns",
            "has no column 't'; its columns are LabVIEW Measurement",
            options=("skip=4",),
        ),
        Case(
            "markdown",
            "a table of Markdown",
            lines(" | ", first="| ", last=" |").replace("b |\n", "b |\n|---|---|---|\n").encode(),
        ),
        Case(
            "psql",
            "psql's table: a line of dashes, and the number of rows at the end",
            lines(" | ", first=" ", after=f"({ROWS} rows)\n").replace("b\n", "b\n---+---+---\n").encode(),
            "row 41 has 1 cells where the first line names 3 columns",
        ),
        Case(
            "transposed",
            "a line for each column instead of each row",
            "".join(
                ",".join([name, *(number(row[i]) for row in truth())]) + "\n" for i, name in enumerate(NAMES)
            ).encode(),
            "starts with numbers, such as '0'",
        ),
        Case(
            "json-lines",
            "a JSON object a line",
            "".join(
                f'{{"t": {number(t)}, "a": {number(a)}, "b": {number(b)}}}\n' for t, a, b in truth()
            ).encode(),
            "does not begin with a line of CSV",
        ),
        Case(
            "keys-in-cells",
            "name=value in each cell",
            "".join(f"t={number(t)},a={number(a)},b={number(b)}\n" for t, a, b in truth()).encode(),
            "has no column 't'; its columns are t=0, a=1234.5, b=-2.5",
        ),
        # Numbers
        Case("fortran", "exponents with D (Fortran)", lines(each=fortran).encode()),
        Case(
            "minus-sign",
            "the minus sign of typesetting (U+2212)",
            lines(each=lambda v: number(v).replace("-", "\u2212")).encode(),
        ),
        Case(
            "wide-digits",
            "digits of full width (U+FF10 to U+FF19)",
            lines(
                each=lambda v: "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in number(v))
            ).encode(),
        ),
        Case(
            "american",
            "thousands with a comma, in quotes",
            lines(each=lambda v: f'"{v:,}"').encode(),
            "row 1 has '1,234.5' in column 'a', which is not a number; if it is 1234.5, give --csv \"thousands=,\"",
            options=("thousands=,",),
        ),
        Case(
            "swiss",
            "thousands with an apostrophe",
            lines(each=thousands("'")).encode(),
            "row 1 has \"1'234.5\" in column 'a', which is not a number; if it is 1234.5, give --csv \"thousands='\"",
            options=("thousands='",),
        ),
        Case(
            "german",
            "thousands with a point, decimals with a comma, semicolons",
            lines(";", each=thousands(".", ",")).encode(),
            "row 1 has '1.234,5' in column 'a', which is not a number; if it is 1234,5, give --csv \"thousands=.\"",
            options=("thousands=.",),
        ),
        Case(
            "french",
            "thousands with a narrow no-break space, decimals with a comma, semicolons",
            lines(";", each=thousands("\u202f", ",")).encode(),
            'if it is 1234,5, give --csv "thousands=space"',
            options=("thousands=space",),
        ),
        Case(
            "accounting",
            "negative numbers in brackets",
            lines(each=lambda v: f"({number(-v)})" if v < 0 else number(v)).encode(),
            "row 1 has '(2.5)' in column 'b', which is not a number",
        ),
        Case(
            "units-in-cells",
            "a unit in each cell",
            lines(each=lambda v: f"{number(v)} m", clock=number).encode(),
            "row 1 has '1234.5 m' in column 'a', which is not a number",
        ),
        Case(
            "percent",
            "a percent sign in each cell",
            lines(each=lambda v: f"{number(v)}%", clock=number).encode(),
            "row 1 has '1234.5%' in column 'a', which is not a number",
        ),
        Case(
            "sentinel",
            "-9999 where there is no value",
            comma.replace("1238.5", "-9999").encode(),
            "-9999 stands in 5 rows, far from all others: if it stands for no value, give --csv missing=-9999",
            options=("missing=-9999",),
            wrong=True,
            missing=HOLES,
        ),
        Case(
            "msvc",
            "1.#QNAN where there is no value (Microsoft's C library)",
            comma.replace("1238.5", "1.#QNAN").encode(),
            missing=HOLES,
        ),
        # Times
        Case(
            "time-of-day",
            "times as 08:00:00.020",
            lines(clock=lambda t: f"{stamp(t):%H:%M:%S.%f}").encode(),
            "row 1 has '15:06:40.000000' in column 't', which is not a number, or a date as 2026-12-07",
        ),
        Case(
            "german-dates",
            "times as 15.06.2025 15:06:40,020",
            lines(clock=lambda t: f'"{stamp(t):%d.%m.%Y %H:%M:%S,%f}"').encode(),
            "row 1 has '15.06.2025 15:06:40,000000' in column 't', which is not a number, or a date as 2026-12-07",
        ),
        Case(
            "month-names",
            "times as 15-Jun-2025 15:06:40.020 (MATLAB)",
            lines(clock=lambda t: f"{stamp(t):%d-%b-%Y %H:%M:%S.%f}").encode(),
            "row 1 has '15-Jun-2025 15:06:40.000000' in column 't', which is not a number, or a date as 2026-12-07",
        ),
        Case(
            "date-and-time",
            "date and time in two columns",
            lines(
                heading=("t", "time", *NAMES[1:]), clock=lambda t: f"{stamp(t):%Y-%m-%d,%H:%M:%S.%f}"
            ).encode(),
            "row 1 has '2025-06-15' in column 't', which is not a number, or a date as 2026-12-07",
        ),
        Case(
            "rostopic",
            "`%time` in nanoseconds (rostopic echo -p)",
            lines(heading=("%time", *NAMES[1:]), clock=nanoseconds).encode(),
            time="time [ns]",
        ),
        Case(
            "rostopic-unasked",
            "the same, with `--time time`",
            lines(heading=("%time", *NAMES[1:]), clock=nanoseconds).encode(),
            "say the unit: --time 'time [ns]' if it is in ns",
            time="time",
        ),
        Case(
            "euroc",
            "`#timestamp [ns]`, `a [m]` (EuRoC)",
            lines(heading=("#timestamp [ns]", "a [m]", "b"), clock=nanoseconds).encode(),
            time="timestamp",
        ),
        # Encodings
        Case(
            "two-marks",
            "two byte order marks, as where a file was saved twice",
            b"\xef\xbb\xbf\xef\xbb\xbf" + comma.encode(),
        ),
        Case("utf-32", "UTF-32", comma.encode("utf-32")),
        Case(
            "ebcdic",
            "EBCDIC (code page 500)",
            comma.encode("cp500"),
            "is not UTF-8 text; if it is a table, give its encoding",
            options=("encoding=cp500",),
        ),
        Case(
            "shift-jis",
            "Shift JIS, with Japanese in it",
            lines(heading=(*NAMES, "備考"), last=",速度").replace("備考,速度", "備考").encode("shift-jis"),
            "is not UTF-8 text; if it is a table, give its encoding",
            options=("encoding=shift-jis",),
        ),
    ]


def table() -> str:
    """In Markdown."""
    rows = (f"| {case.what} | {case.became} |\n".replace("\u202f", " ") for case in cases())
    return "| table | what became of it |\n|---|---|\n" + "".join(rows)


def main(folder: str = "") -> None:
    """Write the files, or print the table."""
    found = cases()
    if folder:
        for case in found:
            (Path(folder) / f"{case.name}.csv").write_bytes(case.content)
        return
    print(table())


if __name__ == "__main__":
    main(*sys.argv[1:])
