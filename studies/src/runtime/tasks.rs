//! The six tasks of RT-Swap's Table IV, as this machine and the zoo have them.

use serde::{Deserialize, Serialize};

/// A task of the experiment.
pub struct TaskModel {
    /// File name of its model.
    pub name: &'static str,
    pub network: &'static str,
    /// Of its weights.
    pub seed: u64,
    /// Its deadline and period, in units that are the same for all: 600, 900 and 1200 ms in the paper.
    pub deadline_units: u64,
}

/// The paper has DenseNet at 416, ResNet at 256 and four ResNeXt at 608.
pub const TASKS: [TaskModel; 6] = [
    task("densenet121", "densenet121", 1, 2),
    task("resnet50", "resnet50", 1, 2),
    task("resnext50-1", "resnext50", 1, 3),
    task("resnext50-2", "resnext50", 2, 3),
    task("resnext50-3", "resnext50", 3, 4),
    task("resnext50-4", "resnext50", 4, 4),
];

const fn task(
    name: &'static str,
    network: &'static str,
    seed: u64,
    deadline_units: u64,
) -> TaskModel {
    TaskModel {
        name,
        network,
        seed,
        deadline_units,
    }
}

/// Memory demanded above what there is: the paper's runtime experiment has 4 %, its study up to 96.2 %.
pub const PERCENTS: [u32; 4] = [4, 25, 50, 96];

/// The part of the processor that the paper's six tasks use with everything in memory: executions of Table III (34, 29 and
/// four times 63 ms) by deadlines of Table IV.
pub const PAPER_USE: f64 = 34.0 / 600.0 + 29.0 / 600.0 + 2.0 * 63.0 / 900.0 + 2.0 * 63.0 / 1200.0;

pub const THREADS: usize = 2;

/// A way to run them all within one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One engine divides the budget; jobs stream what they lack.
    Ours,
    /// onnxruntime over mapped weights: the kernel evicts and reads pages.
    Pages,
    /// A model is read whole before it runs; others give up their volumes.
    Whole,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Ours, Way::Pages, Way::Whole];

    pub fn name(self) -> &'static str {
        match self {
            Way::Ours => "ours",
            Way::Pages => "pages",
            Way::Whole => "whole",
        }
    }
}

/// What is found before any limit is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// Memory of each task's model with everything in memory, as our planner counts it.
    pub whole_bytes: Vec<u64>,
    /// The median of some runs of each task without a limit, by our engine.
    pub ours_ms: Vec<f64>,
    /// The same by onnxruntime; `None` where it cannot be had.
    pub ort_ms: Option<Vec<f64>>,
    /// Bytes of mapped weights in onnxruntime's files.
    pub ort_mapped_bytes: u64,
    /// What a process has beside models: the same for all ways.
    pub process_bytes: u64,
    /// Why there is no onnxruntime.
    pub ort_missing: Option<String>,
    /// Processor and drive.
    pub place: String,
}

impl Prepared {
    pub fn demand_bytes(&self) -> u64 {
        self.whole_bytes.iter().sum()
    }

    /// Of all models together, where `percent` more is demanded.
    pub fn models_bytes(&self, percent: u32) -> u64 {
        self.demand_bytes() * 100 / (100 + u64::from(percent))
    }

    /// The hard limit of that point.
    pub fn limit_bytes(&self, percent: u32) -> u64 {
        // Limits are whole pages.
        (self.models_bytes(percent) + self.process_bytes).div_ceil(4096) * 4096
    }

    /// Execution times that deadlines are made from: of both engines the slower one's, so that neither is too slow for them.
    pub fn execution_ms(&self) -> Vec<f64> {
        let ort = self.ort_ms.as_ref().unwrap_or(&self.ours_ms);
        let both = self.ours_ms.iter().zip(ort);
        both.map(|(&a, &b)| a.max(b)).collect()
    }

    /// Deadlines, which are periods too: in the paper's ratio, so that the processor is used as much as there.
    pub fn deadlines_ns(&self) -> Vec<u64> {
        let execution_ms = self.execution_ms();
        let each = execution_ms.iter().zip(&TASKS);
        let use_of_one_unit: f64 = each.map(|(ms, t)| ms / t.deadline_units as f64).sum();
        let unit_ms = use_of_one_unit / PAPER_USE;
        TASKS
            .iter()
            .map(|t| (unit_ms * t.deadline_units as f64 * 1e6).round() as u64)
            .collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn prepared() -> Prepared {
        Prepared {
            whole_bytes: vec![
                40 << 20,
                110 << 20,
                100 << 20,
                100 << 20,
                100 << 20,
                100 << 20,
            ],
            ours_ms: vec![30.0, 40.0, 50.0, 50.0, 50.0, 50.0],
            ort_ms: Some(vec![40.0, 30.0, 40.0, 40.0, 40.0, 60.0]),
            ort_mapped_bytes: 500 << 20,
            process_bytes: 80 << 20,
            ort_missing: None,
            place: "a processor, a drive".into(),
        }
    }

    #[test]
    fn the_processor_is_used_as_in_the_paper() {
        let prepared = prepared();
        assert_eq!(
            prepared.execution_ms(),
            [40.0, 40.0, 50.0, 50.0, 50.0, 60.0]
        );
        let deadlines = prepared.deadlines_ns();
        let execution_ms = prepared.execution_ms();
        let each = execution_ms.iter().zip(&deadlines);
        let used: f64 = each.map(|(ms, &d)| ms * 1e6 / d as f64).sum();
        assert!((used - 0.35).abs() < 1e-6, "{used}");
        assert_eq!(deadlines[0], deadlines[1]);
        assert!(deadlines[2].abs_diff(deadlines[0] * 3 / 2) <= 2);
        assert!(deadlines[4].abs_diff(deadlines[0] * 2) <= 2);
    }

    #[test]
    fn a_budget_is_so_much_less_than_the_demand() {
        let prepared = prepared();
        assert_eq!(prepared.demand_bytes(), 550 << 20);
        assert_eq!(prepared.models_bytes(0), 550 << 20);
        for percent in PERCENTS {
            let more = prepared.models_bytes(percent) as f64 * (1.0 + f64::from(percent) / 100.0);
            assert!((more - (550 << 20) as f64).abs() < 2.0);
            let beside = prepared.limit_bytes(percent) - prepared.models_bytes(percent);
            assert!((80 << 20..(80 << 20) + 4096).contains(&beside));
        }
    }
}
