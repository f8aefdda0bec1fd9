//! Turns of a conversation as templates expect them: texts, and arguments of calls as JSON.

use super::fault::{Answered, Fault};
use crate::catalogue::shown;
use serde_json::{Map, Value};

/// Who speaks.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

fn wrong(message: impl Into<String>) -> Fault {
    Fault::of_param("messages", message)
}

/// The turns as templates take them.
///
/// # Errors
/// The first that is none, or has content that is no text.
pub fn turns(messages: Vec<Value>) -> Answered<Vec<Value>> {
    if messages.is_empty() {
        return Err(wrong("messages has none"));
    }
    messages.into_iter().map(turn).collect()
}

fn turn(message: Value) -> Answered<Value> {
    let Value::Object(mut turn) = message else {
        return Err(wrong("a message is an object"));
    };
    let role = match turn.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role) => role,
        None => return Err(wrong("a message has no role")),
    };
    if !ROLES.contains(&role) {
        let known = ROLES.join(", ");
        return Err(wrong(format!(
            "the role {} is none of {known}",
            shown(role)
        )));
    }
    let role = Value::from(role);
    turn.insert("role".into(), role);
    let content = turn.remove("content").unwrap_or_default();
    turn.insert("content".into(), text(content)?.into());
    match turn.remove("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) => {
            let calls: Answered<Vec<Value>> = calls.into_iter().map(call).collect();
            turn.insert("tool_calls".into(), calls?.into());
        }
        Some(_) => return Err(wrong("tool_calls is a list")),
    }
    Ok(Value::Object(turn))
}

/// The text of a content: of all its parts.
fn text(content: Value) -> Answered<String> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(wrong("a content is a text, or a list of parts")),
    };
    let mut all = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => all.push_str(text),
            (kind, _) => {
                let kind = shown(kind.unwrap_or("none"));
                let message = format!("models here take text, and no content of type {kind}");
                return Err(wrong(message));
            }
        }
    }
    Ok(all)
}

/// A call of a tool in an earlier answer. Its arguments come as a text of JSON.
fn call(mut call: Value) -> Answered<Value> {
    let function = call.get_mut("function").and_then(Value::as_object_mut);
    let Some(function) = function.filter(|function| function.contains_key("name")) else {
        return Err(wrong("a call has a function with a name"));
    };
    let arguments = function.remove("arguments").unwrap_or_default();
    let read = match &arguments {
        Value::String(text) if text.is_empty() => Some(Map::new().into()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    function.insert("arguments".into(), read.unwrap_or(arguments));
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn turns_are_texts_and_arguments_are_json() {
        let given = vec![
            json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": "no JSON"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "7"}),
        ];
        let read = turns(given).unwrap();
        assert_eq!(read[0], json!({"role": "system", "content": "ab"}));
        let calls = &read[1]["tool_calls"];
        assert_eq!(read[1]["content"], "");
        assert_eq!(calls[0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(calls[1]["function"]["arguments"], "no JSON");
        assert_eq!(read[2]["content"], "7");
    }

    #[test]
    fn what_is_no_turn_is_refused() {
        for (wrong, told) in [
            (json!([]), "has none"),
            (json!([7]), "object"),
            (json!([{"content": "a"}]), "no role"),
            (json!([{"role": "pirate", "content": "a"}]), "'pirate'"),
            (json!([{"role": "user", "content": 7}]), "a text"),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "'image_url'",
            ),
            (json!([{"role": "user", "content": [7]}]), "'none'"),
            (json!([{"role": "assistant", "tool_calls": 7}]), "list"),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "name"),
        ] {
            let Value::Array(messages) = wrong else {
                unreachable!("all are lists");
            };
            let fault = turns(messages.clone()).unwrap_err();
            assert!(
                fault.refusal.message.contains(told),
                "{messages:?}: {fault:?}"
            );
        }
    }
}
