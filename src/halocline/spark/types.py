"""Types: the engine's canonical set in Spark's words, and back.

    arrow   int8 .. int64, float, double   decimal   string binary date   time64   timestamp
    Spark   byte .. long, float, double    decimal   string binary date   time(6)  ntz / ltz

Spark guesses types from what it is given, and guesses differently from Arrow and from Parquet
(naive timestamps), so a schema is stated wherever data passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as T

from halocline.errors import SchemaError
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.schema.schema import Schema
from halocline.schema.types import kind as type_kind

_PLAIN: dict[pa.DataType, T.DataType] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.time64("us"): T.TimeType(6),
    pa.timestamp("us"): T.TimestampNTZType(),
}


def spark_type(kind: pa.DataType) -> T.DataType:
    """The Spark type that holds exactly the values of a canonical Arrow type."""
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if pa.types.is_timestamp(kind):
        return T.TimestampType()
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type), containsNull=True)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return T.StructType([T.StructField(f.name, spark_type(f.type), True) for f in fields])
    raise SchemaError(f"type {kind} has no counterpart in Spark")


def spark_schema(schema: pa.Schema, *, hidden: bool = False) -> T.StructType:
    """Columns of a table, all nullable as Spark's readers make them; with the hidden ones."""
    fields = [T.StructField(field.name, spark_type(field.type), True) for field in schema]
    if hidden:
        fields += [T.StructField(name, T.LongType(), True) for name in (ROWID, COMMIT_TS)]
    return T.StructType(fields)


def constant_sql(value: Any, type: pa.DataType) -> str:
    """A canonical value as a constant in Spark's SQL, whatever is in it."""
    family = type_kind(type)
    if value is None:
        text = "null"
    elif family == "list":
        text = f"array({', '.join(constant_sql(one, type.value_type) for one in value)})"
    elif family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        # Their names come from the cast around them: it goes by position.
        parts = [
            f"'{at}', {constant_sql(value[one.name], one.type)}" for at, one in enumerate(fields)
        ]
        text = f"named_struct({', '.join(parts)})"
    elif family in ("string", "binary"):
        octets = value.encode() if family == "string" else value
        text = f"X'{octets.hex()}'"
    else:
        shown = format(value, "f") if family == "decimal" else str(value)
        text = f"'{shown}'"
    return f"cast({text} as {type_sql(type)})"


def type_sql(type: pa.DataType) -> str:
    """A canonical type in Spark's SQL, whatever its fields are called."""
    family = type_kind(type)
    if family == "list":
        return f"array<{type_sql(type.value_type)}>"
    if family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        return f"struct<{', '.join(f'{quoted(one.name)}: {type_sql(one.type)}' for one in fields)}>"
    return spark_type(type).simpleString()


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """What Spark hands over, in Arrow's words; SchemaError for a type that Arrow has not."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return cast("Any", to_arrow_schema)(schema, timezone="UTC")
    except PySparkException as error:
        raise SchemaError(f"Spark cannot hand this over: {error.getMessage()}") from error


def definition(given: Any) -> pa.Schema:
    """The columns of a table that is made after a DataFrame or its schema, all of them nullable.

    What Spark says of nulls follows from how a DataFrame was computed: a constant has none.
    """
    schema = getattr(given, "schema", given)
    if not isinstance(schema, T.StructType):
        raise SchemaError(f"a {type(given).__name__} of PySpark has no columns: give a DataFrame")
    return arrow_schema(schema.toNullable())


def proper_names(given: T.StructType, schema: Schema) -> dict[str, str]:
    """The columns of an input, each with the table's spelling; SchemaError when one is there twice.

    Also when the table has it not.
    """
    found: dict[str, str] = {}
    for name in given.names:
        proper = schema.names[schema.position(name)]
        if proper in found.values():
            raise SchemaError("the column is there twice", column=proper)
        found[name] = proper
    return found


def check_types(
    given: T.StructType, names: Mapping[str, str], schema: Schema, *, whole: bool
) -> None:
    """SchemaError before a long job starts for columns that cannot be those of the table.

    An empty table of the input's types goes through the checks that its rows will go through;
    `whole`: absent columns are filled in.
    """
    fields = T.StructType([given[name] for name in names])
    empty = arrow_schema(fields).empty_table().rename_columns(list(names.values()))
    schema.table(empty, columns="all" if whole else "given")


def quoted(name: str) -> str:
    """A name as Spark's parser takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
