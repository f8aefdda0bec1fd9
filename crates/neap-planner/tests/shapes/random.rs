//! Random workloads: every kind of weight, odd sizes, buffers that live anywhere.

use neap_plan::{BufferSpec, Extent, PanelSpec, RowTable, StepRange, StepSpec, Workload};
use proptest::prelude::*;

type RawStep = (
    u64,
    u64,
    Option<(u32, u64, u32)>,
    Vec<u64>,
    Option<(u64, u64)>,
);

fn raw_step() -> impl Strategy<Value = RawStep> {
    let panels = prop::option::weighted(0.7, (1u32..40, 1u64..30_000, 1u32..5));
    let extents = prop::collection::vec(1u64..20_000, 0..3);
    let table = prop::option::weighted(0.1, (1u64..300_000, 0u64..30_000));
    (0u64..20_000, 0u64..2_000_000, panels, extents, table)
}

pub fn workload(max_steps: usize) -> impl Strategy<Value = Workload> {
    let steps = prop::collection::vec(raw_step(), 1..max_steps);
    let buffers =
        prop::collection::vec((0u64..60_000, 0u32..7, 0u32..64, 0u32..6), 0..2 * max_steps);
    // Gaps between weights in the file: none, some bytes, or anything.
    let gap = prop_oneof![Just(0u64), Just(64), 0u64..10_000];
    (steps, buffers, gap).prop_map(|(steps, buffers, gap)| build(steps, buffers, gap))
}

fn build(raw: Vec<RawStep>, buffers: Vec<(u64, u32, u32, u32)>, gap: u64) -> Workload {
    let mut at = 0;
    let mut take = |bytes: u64| {
        let offset = at;
        at += bytes + gap;
        offset
    };
    let steps: Vec<StepSpec> = raw
        .into_iter()
        .enumerate()
        .map(
            |(i, (workspace_bytes, flops, panels, extents, table))| StepSpec {
                name: format!("step {i}"),
                workspace_bytes,
                flops: flops * 50,
                touched_bytes: flops,
                panels: panels.map(|(panels, panel_bytes, granule)| PanelSpec {
                    file_offset: take(panel_bytes * u64::from(panels)),
                    panel_bytes,
                    panels,
                    granule,
                }),
                extents: extents
                    .into_iter()
                    .map(|bytes| Extent {
                        file_offset: take(bytes),
                        bytes,
                    })
                    .collect(),
                rows: table.map(|(bytes, rows_workspace_bytes)| RowTable {
                    file_offset: take(bytes),
                    bytes,
                    rows_workspace_bytes,
                }),
                ..StepSpec::default()
            },
        )
        .collect();
    let n = steps.len() as u32;
    let buffers = buffers
        .into_iter()
        .map(|(bytes, align, begin, len)| {
            let begin = begin % (n + 1);
            let live = StepRange::new(begin, (begin + len).min(n));
            BufferSpec {
                name: "b".into(),
                bytes,
                align: 1 << (2 * align).min(12),
                live,
                kept: false,
            }
        })
        .collect();
    Workload {
        digest: "random".into(),
        steps,
        buffers,
        constants_bytes: 0,
        states: Vec::new(),
    }
}
