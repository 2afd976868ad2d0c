"""How keys are declared, checked, suggested and read, and the keys of the random streams; standard library only."""

from edelweiss.common.errors import LISTED, ConfigError
from edelweiss.common.fields import (
    allowed,
    arguments,
    check_fields,
    choice,
    field_errors,
    filename,
    files_named,
    hyper,
    key_of,
    options_of,
    text_errors,
)
from edelweiss.common.latest import latest
from edelweiss.common.names import alike
from edelweiss.common.order import natural
from edelweiss.common.overrides import Value, flatten, read_overrides, to_toml, with_resumed
from edelweiss.common.records import from_record, plain, record_in, records_in, to_record
from edelweiss.common.registry import by_name
from edelweiss.common.schema import Binary, Flag, Number, Schema, Several, Text, in_a_line, mistakes, printable
from edelweiss.common.streams import Stream
from edelweiss.common.suggest import CLOSE, closest, hint, repeated, shorter, shown, unknown

__all__ = [
    "CLOSE",
    "LISTED",
    "Binary",
    "ConfigError",
    "Flag",
    "Number",
    "Schema",
    "Several",
    "Stream",
    "Text",
    "Value",
    "alike",
    "allowed",
    "arguments",
    "by_name",
    "check_fields",
    "choice",
    "closest",
    "field_errors",
    "filename",
    "files_named",
    "flatten",
    "from_record",
    "hint",
    "hyper",
    "in_a_line",
    "key_of",
    "latest",
    "mistakes",
    "natural",
    "options_of",
    "plain",
    "printable",
    "read_overrides",
    "record_in",
    "records_in",
    "repeated",
    "shorter",
    "shown",
    "text_errors",
    "to_record",
    "to_toml",
    "unknown",
    "with_resumed",
]
