//! Holds JSON against a schema: the part of JSON Schema that ours are written in. A keyword that is not among
//! them fails, so that nothing in a schema goes unchecked.

use serde_json::Value;
use std::path::Path;

/// Panics with where and why `value` is not as docs/`name` says.
#[track_caller]
pub(crate) fn assert_valid(name: &str, value: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    let schema: Value = serde_json::from_slice(&std::fs::read(path).expect("a schema")).expect("JSON");
    if let Err(why) = check(&schema, &schema, value, "") {
        panic!("{name}: {why} in {value:#}");
    }
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, rule) in schema.as_object().ok_or("a schema that is none")? {
        let held = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" | "additionalProperties" => true,
            "$ref" => {
                let pointer = rule
                    .as_str()
                    .and_then(|rule| rule.strip_prefix('#'))
                    .ok_or("a reference")?;
                let target = root.pointer(pointer).ok_or_else(|| format!("no {pointer}"))?;
                check(root, target, value, at)?;
                true
            }
            "anyOf" => {
                let tried = rule
                    .as_array()
                    .ok_or("a list")?
                    .iter()
                    .map(|one| check(root, one, value, at));
                let refused: Vec<String> = tried.filter_map(Result::err).collect();
                if refused.len() == rule.as_array().map_or(0, Vec::len) {
                    return Err(refused.join(" and "));
                }
                true
            }
            "type" => match rule {
                Value::Array(types) => types.iter().any(|one| is(value, one)),
                one => is(value, one),
            },
            "const" => value == rule,
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "format" => {
                let time = |text: &str| text.len() == 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z');
                assert_eq!(rule, "date-time");
                value.as_str().is_none_or(time)
            }
            "required" => {
                let names = rule.as_array().ok_or("a list")?.iter().filter_map(Value::as_str);
                value
                    .as_object()
                    .is_none_or(|object| names.into_iter().all(|name| object.contains_key(name)))
            }
            "properties" => {
                let known = rule.as_object().ok_or("properties")?;
                for (name, inner) in value.as_object().into_iter().flatten() {
                    // Those that we write today are all in the schema.
                    let schema = known
                        .get(name)
                        .ok_or_else(|| format!("{at}/{name} is not in the schema"))?;
                    check(root, schema, inner, &format!("{at}/{name}"))?;
                }
                true
            }
            "items" => {
                for (number, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, inner, &format!("{at}/{number}"))?;
                }
                true
            }
            other => return Err(format!("the keyword {other} is not known here")),
        };
        if !held {
            return Err(format!("{at} breaks {keyword} {rule}"));
        }
    }
    Ok(())
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    }
}
