"""The lines of a log file that matter, at the speed of the disk and in memory that does not grow with the file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpctrain.analysis.logs.alike_lines import DIGITS_AS_ZERO, ENDLESS_NUMBER, MAX_DIGITS, AlikeSearch
from hpctrain.analysis.logs.events import AlikeTaker, Line
from hpctrain.analysis.logs.packed_file import PackedFile
from hpctrain.analysis.logs.process_labels import TRAIT_OF_KIND, split_label

CHUNK_BYTES = 2**19
"""Small enough that a piece stays in the cache while it is looked at several times."""
MAX_LINE_BYTES = 2**20
"""Of a longer line only the start is kept, and it counts as damaged."""
_MAX_SHAPES = 4096

_ESCAPES = re.compile(rb"(?:\x1b|\^\[)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B]|[@-Z\\^_=>])")
"""Colours and cursor moves, also where a pager wrote ^[ for the escape byte."""
_BARE_COLOURS = re.compile(rb"\[\d{0,3}(?:;\d{1,3})*m")
_MANY_ZEROS = b"0" * MAX_DIGITS
_LINE_END = re.compile(rb"[\n\r]")
_NULS = re.compile(rb"\0+")
_MULTI_BYTE = re.compile(rb"[\xc3-\xf4][\x80-\xbf]")
_ANY_NUMBER = re.compile(rb"0[0.,]*(?:[eE][-+]?0*)?[KMGTB]?|\b(?:nan|inf)\b")
_DECIMALS = re.compile(rb"\.(\d{3,})\s*$")
_CLOSED_BAR = re.compile(rb"(?:it/s|s/it)\]\s*$")
"""Programs end in a bar without a line end."""
_MIN_CUT_LENGTH = 4
"""Any line may begin with fewer characters."""
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_PLAIN_BAR = r"^[^|\]]*\d+%\|[^|]*\| *(?P<step>\d{1,15})/(?P<total>\d+) \[[^\],]*, *[^\],]*(?:it/s|s/it)\]\s*$"
"""A progress bar of tqdm that carries no metric; its description stands in front."""

Places = np.ndarray[tuple[int], np.dtype[np.intp]]


class _Block:
    """Text of whole lines, and where its pieces end: at line ends and at carriage returns."""

    def __init__(self, data: bytes, whole: bool, with_returns: bool) -> None:
        self.data = data
        self.whole = whole
        """False: a line end was added to the last piece, which the file may have cut off."""
        self.with_returns = with_returns
        codes = np.frombuffer(data, dtype=np.uint8)
        is_end = (codes == 10) | (codes == 13) if with_returns else codes == 10
        self.ends: Places = np.flatnonzero(is_end)
        # Lines are counted at line ends only; without carriage returns each piece is one.
        self._num_ended = np.cumsum(codes[self.ends] == 10) if with_returns else None

    @property
    def num_lines(self) -> int:
        if self._num_ended is None or not len(self.ends):
            return len(self.ends)
        return int(self._num_ended[-1])

    def starts(self, places: Places) -> Places:
        """Where pieces begin."""
        return np.where(places == 0, 0, self.ends[places - 1] + 1)

    def numbers(self, places: Places) -> Places:
        """Number of the line in which each piece stands, from 1."""
        if self._num_ended is None:
            return places + 1
        return np.where(places == 0, 0, self._num_ended[places - 1]) + 1

    def texts(self) -> pa.Array[Any]:
        """The pieces, each with its end, without a copy of the text."""
        offsets = np.zeros(len(self.ends) + 1, dtype=np.int32)
        offsets[1:] = self.ends + 1
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.ends), buffers)


def _mask(values: pa.Array[Any], length: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """One number a truth value; not through ``to_numpy``, which imports pandas. Missing values are 0."""
    masks = [np.frombuffer(cast(bytes, buffer), dtype=np.uint8) for buffer in values.buffers() if buffer is not None]
    unpacked = [np.unpackbits(mask, count=length, bitorder="little") for mask in masks]
    return unpacked[0] & unpacked[-1]


def _without_overwritten(block: _Block, hits: Places) -> Places:
    """Leave out bars that the next bar of the same loop overwrites: a terminal never shows them for more than a moment."""
    # Arrow takes numpy's arrays too, but imports pandas to look at them.
    places = pa.Array.from_buffers(pa.int64(), len(hits), [None, pa.py_buffer(hits.astype(np.int64).tobytes())])
    bars = pc.extract_regex(block.texts().take(places), _PLAIN_BAR)
    totals = pc.struct_field(bars, "total")
    steps = pc.cast(pc.cast(pc.struct_field(bars, "step"), pa.string()), pa.int64())
    count = len(hits) - 1
    same_loop = pc.and_(pc.equal(totals[:count], totals[1:]), pc.less_equal(steps[:count], steps[1:]))
    ended_by_return = np.frombuffer(block.data, dtype=np.uint8)[block.ends[hits[:-1]]] == 13
    overwritten = _mask(same_loop, count).astype(bool) & ended_by_return & (np.diff(hits) == 1)
    kept: Places = hits[np.append(~overwritten, True)]
    return kept


def _short(shape: bytes) -> bytes:
    """A shape in which it does not count how numbers are spelled and how many blanks stand between words."""
    return b" ".join(_ANY_NUMBER.sub(b"0", shape).split())


def _has_all_decimals(end: bytes, known: list[bytes]) -> bool:
    """True if a line ends in a number with as many decimals as all earlier ones had: it is printed in a fixed format."""
    decimals = _DECIMALS.search(end)
    return decimals is not None and {len(match[1]) for match in map(_DECIMALS.search, known) if match} == {
        len(decimals[1])
    }


class LineScanner:
    """Iterates over the lines that hold a marker, each with the places of those formats whose markers it holds.

    Set ``follow`` while iterating and the next line comes in any case; set ``alike_taker`` and following lines of shapes that it
    knows are offered to it, and come one by one if it does not take them. ``encoding``, ``traits``, ``damaged_lines`` and
    ``num_lines`` are complete after the last line.
    """

    def __init__(self, path: Path, markers: Sequence[Sequence[str]]) -> None:
        """``markers[i]`` are those of format i."""
        self.path = path
        self.follow = False
        self.alike_taker: AlikeTaker | None = None
        self.encoding = "utf-8"
        self.traits: set[str] = set()
        self.damaged_lines = 0
        self.num_lines = 0
        self._markers = [tuple(text.encode().translate(DIGITS_AS_ZERO) for text in texts) for texts in markers]
        self._pattern = "|".join(re.escape(text) for text in dict.fromkeys(text for texts in markers for text in texts))
        self._wanted: dict[bytes, tuple[int, ...]] = {}
        self._open_end = b""
        """The last piece, if no line end follows it and no line had its shape before."""
        self._ends_whole = False
        """Only the line end of the last piece is missing."""
        self._label_kinds: set[str] = set()
        self._seen_multi_byte = False
        self._with_bare_colours: bool | None = (
            None  # Told by the first piece: searching for it costs as much as all else.
        )
        self._num_undecodable = 0

    @property
    def is_cut(self) -> bool:
        """True once the last line has come and is the start of a longer kind of line with a marker that stood before it."""
        end = self._open_end
        if not _MIN_CUT_LENGTH <= len(end.strip()) <= MAX_LINE_BYTES or _CLOSED_BAR.search(end):
            return False
        shape = _short(end.translate(DIGITS_AS_ZERO))
        return any(known != shape and known.startswith(shape) for known in map(_short, self._wanted))

    def __iter__(self) -> Iterator[tuple[Line, tuple[int, ...]]]:
        for data, whole in self._blocks():
            yield from self._lines(data, whole)
        self._conclude()

    def _conclude(self) -> None:
        if self._num_undecodable:
            self.traits.add("non_utf8")
            if self._seen_multi_byte:
                self.damaged_lines += self._num_undecodable
            else:
                self.encoding = "latin-1"
        if self.encoding.startswith("utf-16"):
            self.traits.add("non_utf8")
        if self.damaged_lines:
            self.traits.add("damaged_lines")
        for kind in self._label_kinds:
            self.traits |= {"process_label", TRAIT_OF_KIND.get(kind, "process_label")}

    def _blocks(self) -> Iterator[tuple[bytes, bool]]:
        """Pieces of whole lines; the last piece is told apart by False if no line end follows it."""
        rest, head = b"", b""
        for raw in self._chunks():
            data = rest + raw
            if head:
                end = _LINE_END.search(data)
                if end is None:
                    rest = b""
                    continue
                yield head + end[0], False
                data, head = data[end.end() :], b""
            cut = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1
            if not cut and len(data) > MAX_LINE_BYTES:
                # Of an endless line the start is kept, the rest is passed over to the next line end.
                self.damaged_lines += 1
                rest, head = b"", data[:MAX_LINE_BYTES]
                continue
            if cut:
                yield data[:cut], True
            rest = data[cut:]
        if head or rest:
            yield (head or rest) + b"\n", False

    def _chunks(self) -> Iterator[bytes]:
        """The file as UTF-8 or what is nearest to it, without NUL bytes and escape sequences."""
        with PackedFile(self.path) as file:
            raw = file.read(CHUNK_BYTES)
            decoder = self._decoder(raw)
            ended_in_nul = False
            while raw:
                data = raw if decoder is None else decoder.decode(raw).encode("utf-8", "replace")
                if b"\0" in data:
                    self.damaged_lines += len(_NULS.findall(data)) - (ended_in_nul and data.startswith(b"\0"))
                    ended_in_nul = data.endswith(b"\0")
                    data = data.replace(b"\0", b"")
                else:
                    ended_in_nul = False
                if data:
                    yield data
                raw = file.read(CHUNK_BYTES)
            self.damaged_lines += file.damaged

    def _decoder(self, start: bytes) -> codecs.IncrementalDecoder | None:
        """By the byte order mark, or by where the NUL bytes stand."""
        for mark, encoding in _BYTE_ORDER_MARKS:
            if start.startswith(mark):
                self.encoding = encoding
        if start[:4096].count(0) * 3 > len(start[:4096]) and self.encoding == "utf-8":
            odd, even = start[1:4096:2].count(0), start[0:4096:2].count(0)
            if odd > 4 * even or even > 4 * odd:
                self.encoding = "utf-16-le" if odd > even else "utf-16-be"
        if self.encoding == "utf-8":
            return None
        return codecs.getincrementaldecoder(self.encoding)("replace")

    def _lines(self, data: bytes, whole: bool) -> Iterator[tuple[Line, tuple[int, ...]]]:
        self._check_encoding(data)
        if self._with_bare_colours is None:
            self._with_bare_colours = b"^[[" in data or b"[0m" in data
        if b"\x1b" in data or self._with_bare_colours:
            self.traits.add("ansi")
            data = _BARE_COLOURS.sub(b"", _ESCAPES.sub(b"", data))
        if data.startswith(codecs.BOM_UTF8):
            data = data[len(codecs.BOM_UTF8) :]
        with_returns = b"\r" in data
        if with_returns:
            data = data.replace(b"\r\n", b"\n")
            with_returns = b"\r" in data
        if with_returns:
            self.traits.add("carriage_return")
        block = _Block(data, whole, with_returns)
        start = int(block.ends[-2]) + 1 if len(block.ends) > 1 else 0
        end = b"" if whole else block.data[start : int(block.ends[-1])]
        known = self._of_its_shape(end)
        self._open_end, self._ends_whole = b"" if known else end, bool(known) and _has_all_decimals(end, known)
        yield from self._wanted_lines(block, self._hits(block))
        self.num_lines += block.num_lines

    def _of_its_shape(self, raw: bytes) -> list[bytes]:
        """Earlier lines with a marker that were like this one, but for digits and for the lengths of numbers."""
        shape = _short(raw.translate(DIGITS_AS_ZERO))
        return [known for known in self._wanted if _short(known) == shape] if shape else []

    def _check_encoding(self, data: bytes) -> None:
        if data.isascii():
            return
        try:
            data.decode("utf-8")
            self._seen_multi_byte = True
        except UnicodeDecodeError:
            self._seen_multi_byte |= _MULTI_BYTE.search(data) is not None
            text = data.decode("utf-8", "replace")
            self._num_undecodable += sum("�" in line for line in text.splitlines())

    def _hits(self, block: _Block) -> Places:
        """Places of the lines with a marker: RE2 passes over the text once, whatever the number of markers."""
        hits: Places = np.flatnonzero(_mask(pc.match_substring_regex(block.texts(), self._pattern), len(block.ends)))
        if block.with_returns and len(hits) > 1:
            hits = _without_overwritten(block, hits)
        return hits

    def _wanted_lines(self, block: _Block, hits: Places) -> Iterator[tuple[Line, tuple[int, ...]]]:
        place, num_pieces = 0, len(block.ends)
        starts, ends, numbers = block.starts(hits).tolist(), block.ends[hits].tolist(), block.numbers(hits).tolist()
        num_whole = len(starts) - (not block.whole and len(starts) > 0 and int(hits[-1]) + 1 == num_pieces)
        alike = AlikeSearch(block.data, starts[:num_whole], ends[:num_whole], [self.num_lines + n for n in numbers])
        next_hit = 0
        while next_hit < len(starts):
            hit, start, end, number = int(hits[next_hit]), starts[next_hit], ends[next_hit], numbers[next_hit]
            while self.follow and place < hit:
                yield self._line_at(block, place), ()
                place += 1
            raw = block.data[start:end]
            shape = raw.translate(DIGITS_AS_ZERO)
            wanted = self._wanted.get(shape)
            if wanted is None:
                wanted = self._formats_of(shape)
            whole = block.whole or hit + 1 < num_pieces or (self._ends_whole and not self.follow)
            line = self._line(self.num_lines + number, raw, shape, whole)
            yield line, wanted
            place = hit + 1
            next_hit += 1
            if self.alike_taker is not None and not self.follow:
                num_taken = alike.offer(next_hit, line, raw, self.alike_taker, self._wanted)
                if num_taken:
                    next_hit += num_taken
                    place = int(hits[next_hit - 1]) + 1
        while self.follow and place < num_pieces:
            yield self._line_at(block, place), ()
            place += 1

    def _line_at(self, block: _Block, place: int) -> Line:
        here = np.array([place])
        raw = block.data[int(block.starts(here)[0]) : int(block.ends[place])]
        number = self.num_lines + int(block.numbers(here)[0])
        return self._line(number, raw, raw.translate(DIGITS_AS_ZERO), block.whole or place + 1 < len(block.ends))

    def _line(self, number: int, raw: bytes, shape: bytes, whole: bool) -> Line:
        if len(raw) > MAX_LINE_BYTES:
            self.damaged_lines += 1
            raw, whole = raw[:MAX_LINE_BYTES], False
        if len(raw) > MAX_DIGITS and _MANY_ZEROS in shape:
            self.damaged_lines += 1
            raw = ENDLESS_NUMBER.sub(b"", raw)
        label, text, kinds = split_label(raw.decode("utf-8", "replace"))
        if kinds:
            self._label_kinds.update(kinds.split())
        return Line(number, text, label, whole)

    def _formats_of(self, shape: bytes) -> tuple[int, ...]:
        """Lines that differ in digits only hold the same markers, so each shape is looked at once."""
        if len(self._wanted) >= _MAX_SHAPES:
            self._wanted.clear()
        wanted = tuple(i for i, texts in enumerate(self._markers) if any(text in shape for text in texts))
        self._wanted[shape] = wanted
        return wanted
