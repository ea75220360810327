"""Schedules of five fields, as cron has them (POSIX crontab): when a schedule is due next."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# Name, least and most of each field, and its words.
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(DAYS)}),
)
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
DAYS_AHEAD_MAX = 8 * 366  # Also 29 February comes within these.
# The last time is looked for within an hour first, so that few times are counted.
LOOK_BACK_MS = [hours * 3_600_000 for hours in (1, 24, 32 * 24, DAYS_AHEAD_MAX * 24)]


class CronSchedule(NamedTuple):
    """The times of a schedule, in UTC.

    any_day   both days must match; otherwise one of them is enough, as cron has it
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool

    @classmethod
    def parse(cls, text: str) -> "CronSchedule":
        """Five fields: minute, hour, day of the month, month, day of the week (0 and 7: Sunday).

        A field is `*`, numbers, ranges a-b and steps */n or a-b/n, joined by commas; months and
        days also have names of three letters. Or @hourly, @daily, @weekly, @monthly, @yearly.

        Raises ValueError.
        """
        words = SHORT.get(text.strip().lower(), text).lower().split()
        if len(words) != len(FIELDS):
            raise ValueError(f"a schedule has five fields, such as */5 * * * *, not {text!r}")
        minutes, hours, days, months, week = (
            _values(word, *field) for word, field in zip(words, FIELDS, strict=True)
        )
        weekdays = frozenset(day % 7 for day in week)
        any_day = words[2].startswith("*") or words[4].startswith("*")
        made = cls(minutes, hours, days, months, weekdays, any_day)
        if made.after(0) is None:
            raise ValueError(f"the schedule {text!r} has no time")
        return made

    def _has_day(self, at: datetime) -> bool:
        by_month, by_week = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return by_month and by_week if self.any_day else by_month or by_week

    def after(self, time_ms: int) -> int | None:
        """The first time of the schedule after a Unix time, in ms; None: there is none."""
        start = datetime.fromtimestamp(time_ms // 60_000 * 60, UTC) + timedelta(minutes=1)
        day = start.replace(hour=0, minute=0)
        for _ in range(DAYS_AHEAD_MAX):
            if day.month in self.months and self._has_day(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        at = day.replace(hour=hour, minute=minute)
                        if at >= start:
                            return int(at.timestamp()) * 1000
            day += timedelta(days=1)
        return None

    def last(self, since_ms: int, now_ms: int) -> int | None:
        """The last time after since_ms and not after now_ms; None: there is none."""
        for back_ms in LOOK_BACK_MS:
            found, at_ms = None, self.after(max(since_ms, now_ms - back_ms))
            while at_ms is not None and at_ms <= now_ms:
                found, at_ms = at_ms, self.after(at_ms)
            if found is not None:
                return found
        return None


def _values(word: str, name: str, least: int, most: int, words: dict[str, int]) -> frozenset[int]:
    """The numbers of a field. Raises ValueError."""
    found: set[int] = set()
    for part in word.split(","):
        bounds, slash, step = part.partition("/")
        first, dash, last = bounds.partition("-")
        try:
            every = int(step) if slash else 1
            if bounds == "*":
                low, high = least, most
            else:
                low = words[first] if first in words else int(first)
                high = (words[last] if last in words else int(last)) if dash else low
                high = most if slash and not dash else high
        except ValueError:
            raise ValueError(f"{part!r} is no {name} of a schedule") from None
        if every < 1 or not least <= low <= high <= most:
            raise ValueError(f"a {name} is {least} to {most}, not {part!r}")
        found.update(range(low, high + 1, every))
    return frozenset(found)
