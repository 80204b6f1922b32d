"""Reads csv files: whole records from :mod:`.csv_records`, texts by Arrow, values by :mod:`.columns`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from airflow_trident.errors import DamagedInputError
from airflow_trident.spouts.files.columns import are_plain_numbers, reading_type
from airflow_trident.spouts.files.contents import MENDED
from airflow_trident.spouts.files.csv_records import BadRecordError, CsvBlock, CsvBlocks, CsvGrammar
from airflow_trident.spouts.files.packing import unpacked
from airflow_trident.spouts.files.read_options import CsvDialect, FilePart, ReadOptions
from airflow_trident.spouts.files.reading import advice_on_bytes, damage, parsed_batch, require_columns
from airflow_trident.types import Field, names_of

if TYPE_CHECKING:
    import pyarrow as pa

_DIALECT = "For a file that is not as RFC 4180 has it, say how: delimiter, quote, escape and null of FileSpout."


def read_csv(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """As `formats.read_part`."""
    with damage(part.path), unpacked(part.path, file) as content:
        blocks = CsvBlocks(content, reading.dialect)
        if blocks.is_empty:
            return  # it has no columns to check
        yield from _CsvFile(reading, part.path).batches(blocks)


@dataclass(frozen=True)
class _CsvFile:
    reading: ReadOptions
    path: str

    def batches(self, blocks: CsvBlocks) -> Iterator[pa.RecordBatch]:
        rows, plain = 0, True
        try:
            names = self._header(blocks) if self.reading.header else list(names_of(self.reading.schema))
            for block in blocks:
                batches = self._plain(block, names) if plain else []
                plain = bool(batches)
                for batch in batches or self._by_texts(block, names, rows):
                    yield batch
                    rows += batch.num_rows
        except BadRecordError as error:
            raise self._bad_row(rows + error.row, str(error), _DIALECT) from error

    def _header(self, blocks: CsvBlocks) -> list[str]:
        record = blocks.header()
        if record is None:
            raise DamagedInputError(
                f"the file {self.path!r} has no line with the names of its columns",
                f"header=False reads files without one. Or: {MENDED}",
            )
        names = [value.text.decode() for value in record]
        require_columns(self.reading, names, self.path)
        return names

    def _plain(self, block: CsvBlock, names: Sequence[str]) -> list[pa.RecordBatch]:
        """The rows of a block whose numbers Arrow's parser reads as they are meant; none: see each text."""
        import pyarrow as pa

        try:
            table = self._table(block, names, numbers=True)
            if not are_plain_numbers(block.content, table):
                return []
            return [parsed_batch(self.reading, batch, self._subject, 0) for batch in table.to_batches()]
        except (pa.ArrowInvalid, DamagedInputError, UnicodeDecodeError):
            return []

    def _by_texts(self, block: CsvBlock, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a block, by their texts. Where the parser refuses a record, the strict one says which and why."""
        import pyarrow as pa

        try:
            table = self._table(block, names, numbers=False)
        except pa.ArrowInvalid:
            self._require_records(block, names, self._declared(names), rows)
            raise
        for batch in table.to_batches():
            yield parsed_batch(self.reading, batch, self._subject, rows)
            rows += batch.num_rows

    @property
    def _subject(self) -> str:
        return f"the file {self.path!r}"

    def _declared(self, names: Sequence[str]) -> dict[int, Field]:
        return {names.index(field.name): field for field in self.reading.schema}

    def _table(self, block: CsvBlock, names: Sequence[str], *, numbers: bool) -> pa.Table:
        """The declared columns, as `reading_type` has them."""
        import pyarrow as pa
        import pyarrow.csv as pc

        null, declared = self.reading.dialect.null, self._declared(names)
        types = {str(at): reading_type(field.type, "csv", numbers=numbers) for at, field in declared.items()}
        table = pc.read_csv(
            pa.BufferReader(block.content),
            # The columns by number: names that are not declared may be there twice.
            read_options=pc.ReadOptions(
                use_threads=False,
                block_size=len(block.content) + 1,
                column_names=[str(number) for number in range(len(names))],
            ),
            parse_options=pc.ParseOptions(
                delimiter=self.reading.dialect.delimiter,
                quote_char=block.quote or False,
                newlines_in_values=True,
                # Of several columns none can be in it; of a single one it is an empty value.
                ignore_empty_lines=len(names) > 1,
            ),
            convert_options=pc.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                # An empty number is none; an empty text is one.
                null_values=[""] if null is None and numbers else [] if null is None else [null],
                strings_can_be_null=null is not None,
                quoted_strings_can_be_null=False,
                check_utf8=not numbers,  # the border looks, too
            ),
        )
        return table.combine_chunks().rename_columns([field.name for field in declared.values()])

    def _require_records(self, block: CsvBlock, names: Sequence[str], wanted: dict[int, Field], rows: int) -> None:
        """
        :raises DamagedInputError: a record has another number of values, or a text is no UTF-8.
        """
        grammar = CsvGrammar(CsvDialect(delimiter=self.reading.dialect.delimiter, quote=block.quote))
        for values, _ in grammar.records(block.content, at_end=True):
            if len(names) > 1 and len(values) == 1 and not values[0].text and not values[0].quoted:
                continue
            if len(values) != len(names):
                raise self._bad_row(rows, f"expected {len(names)} columns, got {len(values)}", _DIALECT)
            for number, field in wanted.items():
                try:
                    values[number].text.decode("latin-1" if field.type == "binary" else "utf-8")
                except UnicodeDecodeError as error:
                    raise self._bad_row(
                        rows, f"in the column {field.name!r}, {error}", advice_on_bytes(block.content)[0]
                    ) from error
            rows += 1

    def _bad_row(self, row: int, problem: str, cure: str) -> DamagedInputError:
        return DamagedInputError(
            f"the file {self.path!r} cannot be read in row {row + 1}: {problem}", f"{cure} {MENDED}"
        )
