"""Texts from a column of Parquet, by row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpctrain.errors import known_names_hint
from hpctrain.tokens.inputs import InputError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_ROWS = 1024
"""Read together."""


def row_group_bytes(path: str, field: str) -> list[int]:
    """Compressed bytes of each row group, all columns.

    Raises:
        InputError: it is no Parquet, is truncated, or has no such column of text.
    """
    with _opened(path) as file:
        _check_column(file, path, field)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        return [
            sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups
        ]


def group_texts(path: str, field: str, group: int) -> Iterator[list[str | None]]:
    """The texts of one row group, some rows at a time; None where a row has none.

    Raises:
        InputError: rows that cannot be read, with the numbers of row group and row.
    """
    import pyarrow as pa

    with _opened(path) as file:
        first = sum(file.metadata.row_group(number).num_rows for number in range(group))
        row = first
        try:
            for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=[field]):
                yield _texts(batch.column(0), path, row)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(path, f"row group {group}, row {row:,}", _words(error), "it is damaged") from None
        expected = file.metadata.row_group(group).num_rows
        if row - first != expected:
            raise InputError(path, f"row group {group}", f"has {row - first:,} rows, its head says {expected:,}")


def _texts(column: Any, path: str, row: int) -> list[str | None]:
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:
        for place, scalar in enumerate(column):
            try:
                scalar.as_py()
            except UnicodeDecodeError as error:
                rule = f"is not UTF-8: byte {error.start} of the text is 0x{error.object[error.start]:02x}"
                raise InputError(path, f"row {row + place:,}", rule) from None
        raise
    return texts


def _opened(path: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            path, "", _words(error), "it is no Parquet, or truncated: its end holds what it is made of"
        ) from None


def _check_column(file: pq.ParquetFile, path: str, field: str) -> None:
    import pyarrow as pa

    schema = file.schema_arrow
    if schema.names.count(field) != 1:
        rule = f"has no column {field!r}" if field not in schema.names else f"has several columns {field!r}"
        raise InputError(path, "", rule, f"--field COLUMN; {known_names_hint(field, schema.names)}")
    kind: Any = schema.field(field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        texts = [name for name in schema.names if pa.types.is_string(schema.field(name).type)]
        fix = f"columns of text: {', '.join(texts)}" if texts else "it has no column of text"
        raise InputError(path, "", f"column {field!r} is {kind}, no text", fix)


def _words(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
