"""Screen of `trainband top`: a feed on one terminal screen, and its keys. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainband.job.statistics import WorkerStatus
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.snapshot import JobSnapshot, PsView
from trainband.monitor.timeline import Event
from trainband.runtime.formatting import duration, printable, rate, size

Tab = Literal["workers", "servers", "events"]
TABS: tuple[Tab, ...] = ("workers", "servers", "events")
MOST_ALERTS = 3
_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {
    "live": "green",
    "running": "bold green",
    "up": "green",
    "stuck": "bold yellow",
    "awaited": "yellow",
    "preempted": "yellow",
    "waiting": "yellow",
    "lost": "bold red",
    "failed": "bold red",
    "silent": "bold red",
    "unreachable": "bold red",
    "error": "red",
    "warning": "yellow",
    "good": "green",
    "info": "",
}

SORTS: Mapping[str, Callable[[WorkerStatus], tuple[object, ...]]] = {
    "worker": lambda worker: _numbered(worker.task),
    "steps/s": lambda worker: (-worker.rate, *_numbered(worker.task)),
    "staleness": lambda worker: (-worker.staleness, *_numbered(worker.task)),
    "loss": lambda worker: (worker.loss is None, -(worker.loss or 0.0), *_numbered(worker.task)),
    "pushes": lambda worker: (-worker.pushes, *_numbered(worker.task)),
    "dropped": lambda worker: (-worker.dropped, *_numbered(worker.task)),
    "heard": lambda worker: (-worker.heard_s, *_numbered(worker.task)),
    "memory": lambda worker: (-worker.memory_bytes, *_numbered(worker.task)),
    "state": lambda worker: (worker.presence == "live" and not worker.stalled_s, *_numbered(worker.task)),
}
"""Sort orders of workers; except by name, exceptional values come first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """State of the user's choices.

    Attributes:
      tab: the list shown.
      sort: a key of `SORTS`.
      backwards: whether that order is reversed.
      top: the first visible row of the list.
      words: only workers with this text in their row; while `typing`, it is being edited.
      over: whether to quit.
    """

    tab: Tab = "workers"
    sort: str = "worker"
    backwards: bool = False
    top: int = 0
    words: str = ""
    typing: bool = False
    over: bool = False


def pressed(view: View, key: str, *, page: int, rows: int) -> View:
    """Returns the view after a key press.

    Args:
      key: a character, or `up`, `down`, `left`, `right`, `pageup`, `pagedown`, `home`, `end`, `tab`, `escape`,
        `enter`, `backspace`.
      page: visible rows of the list.
    """
    if view.typing:
        return _typed(view, key)
    last = max(0, rows - page)
    names = list(SORTS)
    turned = {"right": 1, "left": -1, ">": 1, "<": -1}
    moved = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page}
    if key in ("q", "Q"):
        return replace(view, over=True)
    if key in moved:
        return replace(view, top=min(last, max(0, view.top + moved[key])))
    if key in ("home", "g", "end", "G"):
        return replace(view, top=0 if key in ("home", "g") else last)
    if key == "tab":
        return replace(view, tab=TABS[(TABS.index(view.tab) + 1) % len(TABS)], top=0)
    if key in ("1", "2", "3"):
        return replace(view, tab=TABS[int(key) - 1], top=0)
    if key in turned:
        return replace(view, sort=names[(names.index(view.sort) + turned[key]) % len(names)], backwards=False, top=0)
    if key == "r":
        return replace(view, backwards=not view.backwards)
    if key == "/":
        return replace(view, typing=True, tab="workers", words="", top=0)
    if key == "escape":
        return replace(view, words="", top=0)
    return view


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, typing=False)
    if key == "escape":
        return replace(view, typing=False, words="")
    if key == "backspace":
        return replace(view, words=view.words[:-1], top=0)
    if len(key) == 1 and key.isprintable() and len(view.words) < 40:
        return replace(view, words=view.words + key, top=0)
    return view


@dataclass(frozen=True, slots=True)
class Screen:
    """One picture.

    Attributes:
      picture: for rich.
      page: visible rows of the list.
      rows: all its rows.
    """

    picture: RenderableType
    page: int
    rows: int


def screen(feed: LiveFeed, view: View, width: int, height: int) -> Screen:
    """Draws a feed, as many lines high as the terminal.

    Args:
      width, height: of the terminal, in characters.
    """
    job = feed.snapshot
    head = _head(job, width)
    alerts = [
        Text(f" {printable(alert.text)}", style=f"{_STYLES[alert.severity]}", no_wrap=True, overflow="ellipsis")
        for alert in job.alerts[:MOST_ALERTS]
    ]
    if len(job.alerts) > MOST_ALERTS:
        more = len(job.alerts) - MOST_ALERTS
        alerts.append(Text(f" and {more} more {'alert' if more == 1 else 'alerts'}", style="dim"))
    page = max(1, height - len(head) - len(alerts) - 3)
    if view.tab == "workers":
        workers = sorted_workers(job, view)
        rows, top = len(workers), min(view.top, max(0, len(workers) - page))
        table = _workers(job, workers[top : top + page], feed.sparks(), view, width)
    elif view.tab == "servers":
        rows, top = len(job.ps), min(view.top, max(0, len(job.ps) - page))
        table = _servers(job, job.ps[top : top + page])
    else:
        events = [event for _, event in feed.events_after()][::-1]
        rows, top = len(events), min(view.top, max(0, len(events) - page))
        table = _events(events[top : top + page])
    shown = min(page, rows - top)
    filler = [Text("") for _ in range(page - shown)]
    where = f"{top + 1}–{top + shown} of {rows:,}" if rows else "none"
    body: list[RenderableType] = [*head, *alerts, _tabs(job, view, where), table, *filler, _foot(view, width)]
    return Screen(Group(*body), page, rows)


def sorted_workers(job: JobSnapshot, view: View) -> list[WorkerStatus]:
    """Returns the workers that a view shows, in its order."""
    words = view.words.lower()

    def matches(worker: WorkerStatus) -> bool:
        row = worker.task, _state(worker, job), worker.host, worker.transport, worker.device
        return words in " ".join(row).lower()

    found = [worker for worker in job.workers if not words or matches(worker)]
    return sorted(found, key=SORTS[view.sort], reverse=view.backwards)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws the newest values as blocks of eight heights, scaled to the largest."""
    newest = values[-width:]
    top = max(newest, default=0.0)
    blocks = "".join(_BLOCKS[min(7, int(value / top * 7.99))] if top > 0 else _BLOCKS[0] for value in newest)
    return blocks.rjust(width)


def bar(share: float, text: str, width: int, style: str = "green") -> Text:
    """Draws a bar like htop's: `[|||||      57%]`."""
    inner = max(len(text) + 1, width - 2)
    filled = round(min(1.0, max(0.0, share)) * inner)
    line = ("|" * filled).ljust(inner)[: inner - len(text)] + text
    found = Text("[", style="bold")
    found.append(line[:filled], style=style)
    found.append(line[filled:], style="dim")
    return found.append("]", style="bold")


def _head(job: JobSnapshot, width: int) -> list[Text]:
    live, known = job.live_workers, len(job.workers)
    up = sum(view.up for view in job.ps)
    first = Text(" trainband ", style="bold reverse", no_wrap=True, overflow="ellipsis")
    first.append(f" {printable(job.source)}  ", style="not bold not reverse")
    first.append("starting" if job.is_starting else job.state, style=f"not reverse {_STYLES.get(job.state, 'bold')}")
    if job.state in ("waiting", "unreachable"):
        first.append(f" for {job.at - job.since:,.0f} s: {printable(job.reason)}", style="not bold not reverse yellow")
    elif job.rule_text:
        first.append(
            f"  rule {printable(job.rule_text)}  chief {printable(job.chief)}", style="not bold not reverse dim"
        )
    half = max(20, width // 2 - 12)
    share = job.global_step / job.last_step if job.last_step else 0.0
    steps = f"{job.global_step:,}" + (f"/{job.last_step:,} {share:.0%}" if job.last_step else "")
    pace = f"{rate(job.rate)} steps/s"
    if job.is_starting:
        pace = "compiling the first step" if job.workers else "no worker yet"
    lines = [first, _pair("steps", bar(share, steps, half), pace)]
    style = "green" if live == known else "yellow"
    lines.append(_pair("workers", bar(live / known if known else 0.0, f"{live}/{known}", half, style), _loss(job)))
    if job.ps:
        style = "green" if up == len(job.ps) else "red"
        flow = f"in {size(round(job.bytes_in_rate))}/s  out {size(round(job.bytes_out_rate))}/s"
        lines.append(_pair("ps", bar(up / len(job.ps), f"{up}/{len(job.ps)}", half, style), flow))
    left = f"{duration(job.left_s)} left" if job.left_s is not None else "time left unknown"
    checkpoint = f"  {job.checkpoint}" if job.checkpoint is not None else ""
    stale = f"staleness median {job.staleness_median:g}, p99 {job.staleness_p99:g}, largest {job.staleness_max}"
    lines.append(Text(f" {left}  {stale}{checkpoint}", style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


def _pair(name: str, drawn: Text, text: str) -> Text:
    line = Text(f" {name:<8}", style="cyan", no_wrap=True, overflow="ellipsis")
    line.append_text(drawn)
    return line.append(f"  {text}", style="not cyan")


def _loss(job: JobSnapshot) -> str:
    loss = "loss not yet known" if job.loss is None else f"loss {job.loss:.4f}"
    learning_rate = "" if job.learning_rate is None else f"  learning rate {job.learning_rate:.4g}"
    return f"{rate(job.examples_rate)} examples/s  {loss}{learning_rate}"


def _tabs(job: JobSnapshot, view: View, where: str) -> Text:
    counts = {"workers": len(job.workers), "servers": len(job.ps)}
    line = Text(" ", no_wrap=True, overflow="ellipsis")
    for number, name in enumerate(TABS, 1):
        count = f" {counts[name]:,}" if name in counts else ""
        line.append(f" {number} {name}{count} ", style="bold reverse" if name == view.tab else "dim")
    line.append(f"  {where}", style="dim")
    if view.words or view.typing:
        line.append(f"  filter: {printable(view.words)}{'▏' if view.typing else ''}", style="bold yellow")
    return line


def _foot(view: View, width: int) -> Text:
    order = f"{view.sort}{' reversed' if view.backwards else ''}"
    keys = [
        ("q", "quit"),
        ("←→", f"sort: {order}"),
        ("r", "reverse"),
        ("↑↓", "scroll"),
        ("/", "filter"),
        ("Tab", "next"),
    ]
    line = Text("", no_wrap=True, overflow="ellipsis")
    for key, what in keys:
        line.append(f" {key} ", style="bold reverse").append(f"{what} ")
    line.truncate(width)
    return line


def _table(*columns: str, least: int = 0) -> Table:
    """Makes a table of these columns; those that begin with `>` are aligned to the right."""
    table = Table(box=None, pad_edge=True, padding=(0, 1, 0, 0), header_style="bold reverse", expand=True)
    for column in columns:
        right = column.startswith(">")
        name = column.lstrip(">")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=max(least, len(name)) or None,
        )
    return table


def _workers(
    job: JobSnapshot, workers: Sequence[WorkerStatus], sparks: Mapping[str, list[float]], view: View, width: int
) -> Table:
    titles = ["worker", "state", ">steps/s", "last minute", ">staleness", ">loss", ">pushes", ">heard"]
    wider = ((">dropped", 95), (">memory", 106), ("device", 124), ("transport", 138), ("process", 160))
    titles += [name for name, least in wider if width >= least]
    marked = [f"{title}{'▾' if title.lstrip('>') == view.sort else ''}" for title in titles]
    table = _table(*marked, least=7)
    for worker in workers:
        state = _state(worker, job)
        cells: dict[str, RenderableType] = {
            "worker": Text(printable(worker.task) + (" ★" if worker.task == job.chief else "")),
            "state": Text(printable(state), style=_STYLES.get(state, "dim")),
            "steps/s": rate(worker.rate),
            "last minute": Text(sparkline(sparks.get(worker.task, []), 11), style="cyan"),
            "staleness": f"{worker.staleness:.1f}",
            "loss": "" if worker.loss is None else f"{worker.loss:.4f}",
            "pushes": f"{worker.pushes:,}",
            "dropped": f"{worker.dropped:,}",
            "heard": f"{worker.heard_s:.1f} s",
            "memory": worker.memory,
            "device": Text(printable(worker.device)),
            "transport": Text(printable(worker.transport)),
            "process": Text(f"{worker.pid} on {printable(worker.host)}"),
        }
        table.add_row(*(cells[title.lstrip(">")] for title in titles), style="" if worker.presence == "live" else "dim")
    return table


def _servers(job: JobSnapshot, servers: Sequence[PsView]) -> Table:
    table = _table("server", "state", "shards", ">updates/s", ">version", ">in", ">out", ">shard", ">memory", "address")
    for view in servers:
        state = "up" if view.up else "ended" if job.state == "ended" else "silent"
        held = [f"{one.shard} {one.role}" + (f" t{one.term}" if one.term > 1 else "") for one in view.replicas]
        table.add_row(
            printable(view.task),
            Text(state, style=_STYLES.get(state, "")),
            Text(printable(", ".join(held))),
            rate(view.rate),
            f"{view.version:,}",
            f"{size(round(view.bytes_in_rate))}/s",
            f"{size(round(view.bytes_out_rate))}/s",
            size(view.shard_bytes),
            size(view.memory_bytes) if view.memory_bytes else "",
            Text(printable(view.address)),
        )
    return table


def _events(events: Sequence[Event]) -> Table:
    table = _table("time", "event", ">global step")
    for event in events:
        table.add_row(
            f"{datetime.fromtimestamp(event.at):%H:%M:%S}",
            Text(printable(event.text), style=_STYLES[event.severity]),
            f"{event.step:,}",
        )
    return table


def _state(worker: WorkerStatus, job: JobSnapshot) -> str:
    if worker.presence == "live" and worker.stalled_s:
        return "stuck"
    if worker.presence == "live" and worker.task in job.waiting_for:
        return "awaited"
    return worker.presence


def _numbered(task: str) -> tuple[str, int]:
    name, _, number = task.partition(":")
    return name, int(number) if number.isdigit() else 0
