#!/usr/bin/env python3
"""sdk_types.py openapi/openapi.json: prints the Python types of what the API says, sdk/python/src/muster/_wire.py.

`ruff format` gives them their form; scripts/check.sh says how when the file is out of date.
"""

import json
import keyword
import sys
from pathlib import Path

HEADER = '''"""What the API says, as types. Made from openapi.json, and as long, by scripts/sdk_types.py: not edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    # Python 3.11 has it; nothing evaluates these annotations, so older ones need no package for it.
    from typing_extensions import NotRequired

'''
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict[str, Any]"}


def name_of(schema):
    return schema["$ref"].rpartition("/")[2]


def type_of(schema):
    """The annotation of a schema that is not an object of its own."""
    if "$ref" in schema:
        return name_of(schema)
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    if "oneOf" in schema:
        some = [type_of(one) for one in schema["oneOf"] if one.get("type") != "null"]
        plain = some[0] if len(some) == 1 else f"Union[{', '.join(some)}]"
        return plain if len(some) == len(schema["oneOf"]) else f"{plain} | None"
    kinds = schema.get("type", "object")
    if isinstance(kinds, list):
        inner = type_of({**schema, "type": next(kind for kind in kinds if kind != "null")})
        return f"{inner} | None"
    if kinds == "array":
        return f"list[{type_of(schema.get('items', {}))}]"
    values = schema.get("additionalProperties")
    if kinds == "object" and isinstance(values, dict):
        return f"dict[str, {type_of(values)}]"
    return SIMPLE.get(kinds, "Any")


def is_record(schema):
    return "properties" in schema or "allOf" in schema or any("properties" in one for one in schema.get("oneOf", []))


def fields_of(schema):
    """Properties and whether each is always there. Alternatives become one record: what all of them have is certain."""
    if "oneOf" in schema:
        fields = {}
        for one in schema["oneOf"]:
            for key, (text, certain) in fields_of(one).items():
                known, before = fields.get(key, (text, True))
                if known.startswith("Literal[") and known != text:
                    text = f"{known[:-1]}, {text[8:]}"
                fields[key] = (text, before and certain)
        always = set.intersection(*(set(fields_of(one)) for one in schema["oneOf"]))
        return {key: (text, certain and key in always) for key, (text, certain) in fields.items()}
    required = schema.get("required", [])
    return {key: (type_of(value), key in required) for key, value in schema.get("properties", {}).items()}


def docs(schema):
    text = " ".join(schema.get("description", "").split())
    return text.replace("\\", "\\\\").replace('"""', "'''")


def record(name, schema):
    bases, own = ["TypedDict"], schema
    if "allOf" in schema:
        bases = [name_of(one) for one in schema["allOf"] if "$ref" in one]
        own = next((one for one in schema["allOf"] if "properties" in one), {})
    lines = [f"class {name}({', '.join(bases)}):"]
    if text := docs(schema):
        lines.append(f'    """{text}"""\n')
    for key, (text, certain) in sorted(fields_of(own).items()):
        if keyword.iskeyword(key):
            sys.exit(f"{name}.{key} cannot be written as a class")
        lines.append(f"    {key}: {text if certain else f'NotRequired[{text}]'}")
    return "\n".join(lines) + "\n"


def main():
    schemas = json.loads(Path(sys.argv[1]).read_text())["components"]["schemas"]
    print(HEADER)
    records = {name: schema for name, schema in schemas.items() if is_record(schema)}
    for name, schema in schemas.items():
        if name not in records:
            print(f"{name} = {type_of(schema)}")
    done = set()
    while len(done) < len(records):
        for name, schema in records.items():
            bases = {name_of(one) for one in schema.get("allOf", []) if "$ref" in one}
            if name not in done and bases <= done:
                done.add(name)
                print(f"\n\n{record(name, schema)}", end="")


main()
