"""Time limits: read as people and Slurm write them, written as engines read them."""

from __future__ import annotations

import re

from provision.core.errors import InvalidSpec

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNITS = re.compile(r"(?:\d+[smhd])+")
# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
# days-hours:minutes:seconds.
_SLURM = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
LONGEST_S = 366 * 86400


def parse_duration(text: str) -> int:
    """Seconds of `90m`, `4h`, `1d12h`, or of Slurm's `60`, `4:00:00`, `2-00`. Raises InvalidSpec."""
    seconds = _seconds(text.strip())
    if seconds is None or not 0 < seconds <= LONGEST_S:
        raise InvalidSpec(
            f"{text!r} is not a time limit.",
            advice="Write 90m, 4h or 2d, or as Slurm does: minutes, H:MM:SS, D-HH.",
        )
    return seconds


def _seconds(text: str) -> int | None:
    if _WITH_UNITS.fullmatch(text):
        parts = re.findall(r"(\d+)([smhd])", text)
        return sum(int(number) * _UNITS[unit] for number, unit in parts)
    if _SLURM.fullmatch(text) is None:
        return None
    numbers = list(map(int, re.split("[-:]", text)))
    units: tuple[int, ...] = (86400, 3600, 60, 1)
    if "-" not in text:
        units = ((60,), (60, 1), (3600, 60, 1))[len(numbers) - 1]
    return sum(number * unit for number, unit in zip(numbers, units))


def slurm_time(seconds: int) -> str:
    """`1-12:00:00`. Slurm counts whole minutes: seconds are rounded up."""
    minutes = -(-seconds // 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours:02}:{minutes:02}:00"
    return f"{days}-{text}" if days else text
