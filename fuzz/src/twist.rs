//! Changes to plain data whatever its type: numbers, and what lists have in them.

use serde_json::Value;

/// What one change takes of the input.
const CHANGE_BYTES: usize = 4;

/// Applies the changes that `bytes` describe, four bytes each: where (two), what, and with what.
pub fn twisted(roots: &mut [&mut Value], bytes: &[u8]) {
    for change in bytes.chunks_exact(CHANGE_BYTES).take(8) {
        let &[low, high, what, with] = change else {
            unreachable!("a chunk of four");
        };
        let places: usize = roots.iter().map(|root| count(root)).sum();
        if places == 0 {
            return;
        }
        let mut at = usize::from(u16::from_le_bytes([low, high])) % places;
        for root in roots.iter_mut() {
            let inside = count(root);
            if at < inside {
                change_at(root, at, what, with);
                break;
            }
            at -= inside;
        }
    }
}

/// Numbers and lists.
fn count(value: &Value) -> usize {
    match value {
        Value::Number(_) => 1,
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

fn change_at(value: &mut Value, mut at: usize, what: u8, with: u8) {
    match value {
        Value::Number(number) => {
            let changed = number.as_u64().map(|n| other_number(n, what, with));
            *value = changed.map_or(Value::Null, Value::from);
        }
        Value::Array(items) => {
            if at == 0 {
                return change_list(items, what, with);
            }
            at -= 1;
            for item in items {
                let inside = count(item);
                if at < inside {
                    return change_at(item, at, what, with);
                }
                at -= inside;
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                let inside = count(field);
                if at < inside {
                    return change_at(field, at, what, with);
                }
                at -= inside;
            }
        }
        _ => {}
    }
}

fn other_number(n: u64, what: u8, with: u8) -> u64 {
    let small = u64::from(with);
    match what % 10 {
        0 => small,
        1 => n.wrapping_add(1),
        2 => n.wrapping_sub(1),
        3 => n.wrapping_add(small * 4096),
        4 => n.wrapping_sub(small * 4096),
        5 => n.wrapping_add(small),
        6 => n.wrapping_sub(small),
        7 => n.wrapping_mul(2),
        8 => 1 << (with % 64),
        _ => u64::MAX - small,
    }
}

fn change_list(items: &mut Vec<Value>, what: u8, with: u8) {
    if items.is_empty() {
        return;
    }
    let at = usize::from(with) % items.len();
    match what % 5 {
        0 => {
            items.remove(at);
        }
        1 => items.insert(at, items[at].clone()),
        2 => items.swap(at, 0),
        3 => {
            let next = (at + 1) % items.len();
            items.swap(at, next);
        }
        _ => items.truncate(at),
    }
}
