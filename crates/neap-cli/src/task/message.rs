//! What a task and its members tell each other, a line each: orders as words, answers as JSON.

use crate::report::{Adapted, Kept, Latency};
use neaptide::{LatencyCurve, Ledger};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// From the task to a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Tell the curve of predicted latency.
    Curve,
    /// Budgets to add to the curve.
    Points(Vec<u64>),
    /// Open a session within so many bytes.
    Open(u64),
    Go,
    /// Another budget, between two runs.
    Budget(u64),
    /// No more runs.
    End,
}

/// From a member to the task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Curve(LatencyCurve),
    Opened(Box<Opened>),
    Adapted(Box<Adapted>),
    /// A budget that was infeasible after all: the smallest that is not. The old one stays.
    Refused(u64),
    Done(Box<Done>),
}

/// A member's plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opened {
    pub strategy: String,
    pub budget_bytes: u64,
    pub planned_high_water_bytes: u64,
    pub base_overhead_bytes: u64,
    pub ledger: Ledger,
    pub resident_weight_bytes: u64,
    pub loaded_bytes_per_run: u64,
    pub predicted_latency_ms: f64,
}

/// A member's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Done {
    pub latency_ms: Latency,
    pub stall_ms: f64,
    /// With `--keep-activations`, what the last run left of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<Vec<Kept>>,
    /// `VmHWM` of its process.
    pub peak_memory_bytes: u64,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Curve => f.write_str("curve"),
            Order::Points(budgets) => {
                f.write_str("points")?;
                budgets.iter().try_for_each(|bytes| write!(f, " {bytes}"))
            }
            Order::Open(bytes) => write!(f, "open {bytes}"),
            Order::Go => f.write_str("go"),
            Order::Budget(bytes) => write!(f, "budget {bytes}"),
            Order::End => f.write_str("end"),
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Order, String> {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let bad = || format!("'{line}' is no order");
        let numbers = numbers.map_err(|_| bad())?;
        match (verb, numbers.as_slice()) {
            ("curve", []) => Ok(Order::Curve),
            ("points", _) => Ok(Order::Points(numbers)),
            ("open", &[bytes]) => Ok(Order::Open(bytes)),
            ("go", []) => Ok(Order::Go),
            ("budget", &[bytes]) => Ok(Order::Budget(bytes)),
            ("end", []) => Ok(Order::End),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_as_they_were_sent() {
        for order in [
            Order::Curve,
            Order::Points(vec![]),
            Order::Points(vec![1, 20]),
            Order::Open(u64::MAX),
            Order::Go,
            Order::Budget(7),
            Order::End,
        ] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for bad in ["", "open", "open x", "go 1", "budget 1 2", "stop"] {
            assert!(bad.parse::<Order>().is_err(), "{bad}");
        }
    }
}
