//! What was measured, as it is kept between measuring and writing.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct ModelResult {
    pub model: String,
    pub peers: Vec<PeerResult>,
    /// Storage as it is first, then throttled.
    pub curves: Vec<Curve>,
    pub ablations: Vec<Ablation>,
}

/// Another engine with all the memory it wants.
#[derive(Serialize, Deserialize)]
pub struct PeerResult {
    pub engine: String,
    /// `Err`: why there is no figure.
    pub outcome: Result<PeerFigures, String>,
}

#[derive(Serialize, Deserialize)]
pub struct PeerFigures {
    pub latency_ms: f64,
    pub peak_bytes: u64,
}

/// Memory against latency on one storage.
#[derive(Serialize, Deserialize)]
pub struct Curve {
    /// `None` for storage as it is.
    pub throttle_bytes_per_second: Option<u64>,
    /// The planner's, by budget; the last one has none.
    pub points: Vec<Point>,
    pub ondemand: Vec<Point>,
    pub resident: Option<Point>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Point {
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    pub peak_bytes: u64,
    pub latency_ms: f64,
    pub predicted_ms: f64,
    pub loaded_bytes: u64,
    /// Of storage, for as many bytes; where any are loaded.
    pub bytes_per_second: Option<f64>,
    /// The paper's share of onnxruntime's peak.
    pub is_paper_share: bool,
}

/// One budget with parts of the engine left out.
#[derive(Serialize, Deserialize)]
pub struct Ablation {
    pub budget_bytes: u64,
    pub full_ms: f64,
    pub variants: Vec<Variant>,
}

#[derive(Serialize, Deserialize)]
pub struct Variant {
    pub without: String,
    /// `Err`: the budget is too small for it; the smallest that is not.
    pub latency_ms: Result<f64, u64>,
}

impl ModelResult {
    pub fn fastest_peer(&self) -> Option<(&str, &PeerFigures)> {
        let figures = self.peers.iter();
        let figures = figures.filter_map(|p| Some((p.engine.as_str(), p.outcome.as_ref().ok()?)));
        figures.min_by(|a, b| a.1.latency_ms.total_cmp(&b.1.latency_ms))
    }

    pub fn curve(&self, throttle: Option<u64>) -> Option<&Curve> {
        self.curves
            .iter()
            .find(|c| c.throttle_bytes_per_second == throttle)
    }
}

impl Curve {
    pub fn free_ms(&self) -> Option<f64> {
        let free = self.points.iter().find(|p| p.budget_bytes.is_none())?;
        Some(free.latency_ms)
    }
}

impl Point {
    /// No plan that loads as much can be faster.
    pub fn bound_ms(&self, free_ms: f64) -> f64 {
        let load_ms = |rate: f64| self.loaded_bytes as f64 / rate * 1e3;
        free_ms.max(self.bytes_per_second.map_or(0.0, load_ms))
    }

    /// Where it lies on the axis of memory: its budget, or what it takes without one.
    pub fn memory_bytes(&self) -> u64 {
        self.budget_bytes.unwrap_or(self.peak_bytes)
    }
}

/// Of positive numbers; `None` of none.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_the_larger_of_computing_and_loading() {
        let mut point = Point {
            budget_bytes: Some(1 << 20),
            peak_bytes: 0,
            latency_ms: 0.0,
            predicted_ms: 0.0,
            loaded_bytes: 50_000_000,
            bytes_per_second: Some(1e9),
            is_paper_share: false,
        };
        assert_eq!(point.bound_ms(20.0), 50.0);
        assert_eq!(point.bound_ms(70.0), 70.0);
        point.bytes_per_second = None;
        assert_eq!(point.bound_ms(20.0), 20.0);
    }

    #[test]
    fn means() {
        assert_eq!(geometric_mean(&[]), None);
        let mean = geometric_mean(&[0.5, 2.0, 1.0]).unwrap();
        assert!((mean - 1.0).abs() < 1e-12);
    }
}
