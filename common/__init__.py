"""Utilities of all packages: options, records, messages, files, caches, random streams."""

from edelweiss.common.errors import LISTED, ConfigError, FieldError, Fields, PlugInError
from edelweiss.common.latest import latest
from edelweiss.common.names import alike
from edelweiss.common.options import (
    FileName,
    HasOptions,
    allowed,
    arguments,
    check_options,
    choices,
    files_named,
    key_of,
    option_errors,
    text_errors,
)
from edelweiss.common.order import natural
from edelweiss.common.overrides import Value, flatten, read_overrides, to_toml, with_resumed
from edelweiss.common.process_cache import PROCESS_CACHE
from edelweiss.common.records import from_record, plain, record_in, records_in, to_record
from edelweiss.common.registry import Registry, by_name, require_declared, require_kinds
from edelweiss.common.schema import Schema, in_a_line, printable, record_errors, schema_of
from edelweiss.common.streams import Stream
from edelweiss.common.suggest import CLOSE, amount, closest, hint, repeated, shorter, shown, unknown, within
