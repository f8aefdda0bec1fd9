//! A plan small enough to be checked by hand, its verdict and its pictures.
//!
//! ```text
//!   block 2   l0 (a, 2 blocks)  l2 arriving       l2 (b's panel 1)
//!   block 1   l0                l1 (b's panel 0)  ·
//!   block 0   x, and b's workspace ────────────────────────────────►
//!             compute 0: a      compute 1: b      compute 2: b
//! ```

use neap_plan::{
    AfterCompute, BufferSpec, Compute, ExecutionPlan, Extent, KernelId, LaneId, Lanes, Load,
    PanelRange, PanelSpec, Place, PreparedPanels, ResidentLoad, RunTiming, Space, Span, StepId,
    StepRange, StepSpec, Timeline, Turn, Verdict, Violation, WeightsAt, Workload, render, validate,
};

const BLOCK: u64 = 4096;

/// Step 0 has 100 bytes of weights that straddle a block; step 1 has two panels of one block each.
fn workload() -> Workload {
    let steps = vec![
        StepSpec {
            name: "a</script><b>".into(),
            extents: vec![Extent {
                file_offset: BLOCK - 50,
                bytes: 100,
            }],
            ..StepSpec::default()
        },
        StepSpec {
            name: "b".into(),
            workspace_bytes: 64,
            panels: Some(PanelSpec {
                file_offset: 2 * BLOCK,
                panel_bytes: BLOCK,
                panels: 2,
                granule: 1,
            }),
            ..StepSpec::default()
        },
    ];
    let buffers = vec![BufferSpec {
        name: "x".into(),
        bytes: 1000,
        align: 64,
        live: StepRange::new(0, 2),
        kept: false,
    }];
    Workload {
        digest: "d".into(),
        steps,
        buffers,
        constants_bytes: 0,
        states: vec![],
    }
}

/// Computes: a, b[0..1], b[1..2]. Blocks 1–2 hold a's weights, then b's panels one after the other.
fn plan() -> ExecutionPlan {
    let compute = |step, panels, at: Option<u64>, extents: &[u64], needs| Compute {
        step: StepId(step),
        panels,
        weights: WeightsAt {
            panels: at.map(Place::work),
            extents: extents.iter().map(|&at| Place::work(at)).collect(),
            table: None,
        },
        turn: Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, needs),
    };
    let load = |file_block: u64, blocks: u64, at: u64, run_back, computes| Load {
        from: Place::packed(file_block * BLOCK),
        bytes: blocks * BLOCK,
        to: Place::work(at * BLOCK),
        turn: AfterCompute { run_back, computes }.load(0),
    };
    ExecutionPlan {
        strategy: "by hand".into(),
        digest: "d".into(),
        spaces: Space::of_host(3 * BLOCK, 4 * BLOCK, 4 * BLOCK, 0),
        lanes: Lanes::default(),
        buffers: vec![Place::work(0)],
        workspaces: vec![Place::work(0), Place::work(1024)],
        resident: vec![],
        prepared: vec![],
        // a's weights may be loaded when the last panel's place is free: at the start of the next run.
        // b's first panel goes to block 1 when a is done; the second to block 2, also then.
        group_bytes: 0,
        loads: vec![
            load(0, 2, 1, 0, 0),
            load(2, 1, 1, 0, 1),
            load(3, 1, 2, 0, 1),
        ],
        computes: vec![
            compute(0, PanelRange::NONE, None, &[BLOCK + BLOCK - 50], 1),
            compute(1, PanelRange::new(0, 1), Some(BLOCK), &[], 2),
            compute(1, PanelRange::new(1, 2), Some(2 * BLOCK), &[], 3),
        ],
        stores: vec![],
        returns: vec![],
        copies: vec![],
        spills_to_host: false,
        states: vec![],
    }
}

fn timeline() -> Timeline {
    let span = |lane, action, ready_ns, start_ns, end_ns| Span {
        lane,
        run: 0,
        action,
        ready_ns,
        start_ns,
        end_ns,
    };
    Timeline {
        spans: vec![
            span(LaneId::LOAD, 0, 0, 0, 80),
            span(LaneId::COMPUTE, 0, 0, 80, 100),
            span(LaneId::LOAD, 1, 100, 100, 140),
            span(LaneId::LOAD, 2, 100, 100, 180),
            span(LaneId::COMPUTE, 1, 100, 140, 160),
            span(LaneId::COMPUTE, 2, 160, 180, 200),
        ],
        runs: vec![RunTiming {
            start_ns: 0,
            end_ns: 200,
            stall_ns: 140,
        }],
    }
}

#[test]
fn the_plan_is_valid_and_its_verdict_known() {
    let verdict = validate(&workload(), &plan()).unwrap();
    let lower_bound_bytes = 2 * BLOCK + 1000 + 64;
    assert_eq!(
        verdict,
        Verdict {
            high_water_bytes: 3 * BLOCK,
            lower_bound_bytes,
            loaded_bytes_per_run: 4 * BLOCK,
            stored_bytes_per_run: 0,
            resident_bytes: 0,
            spill_bytes: 0,
        }
    );
}

#[test]
fn what_the_next_run_prefetches_may_not_be_overwritten_either() {
    // Loaded in the tail of the run before, a's weights would lie on b's panels …
    let mut p = plan();
    p.loads[0].turn = AfterCompute {
        run_back: 1,
        computes: 2,
    }
    .load(0);
    let overlap =
        |p: &ExecutionPlan| matches!(validate(&workload(), p), Err(Violation::Overlap { .. }));
    assert!(overlap(&p));
    // … unless memory is larger and they have a place of their own.
    p.spaces[0].bytes = 5 * BLOCK;
    p.loads[0].to = Place::work(3 * BLOCK);
    p.computes[0].weights.extents[0] = Place::work(3 * BLOCK + BLOCK - 50);
    assert!(validate(&workload(), &p).is_ok());
    // Each run's are loaded when the run before has used its own, and no earlier.
    p.loads[0].turn = AfterCompute {
        run_back: 1,
        computes: 1,
    }
    .load(0);
    assert!(validate(&workload(), &p).is_ok());
    p.loads[0].turn = AfterCompute {
        run_back: 1,
        computes: 0,
    }
    .load(0);
    assert!(overlap(&p));
}

#[test]
fn outputs_are_safe_until_the_next_run_begins() {
    // The buffer is an output: nothing may be loaded onto it before the next run's start.
    let mut p = plan();
    p.spaces[0].bytes = 5 * BLOCK;
    p.loads[0].to = Place::work(0);
    p.computes[0].weights.extents[0] = Place::work(BLOCK - 50);
    assert!(matches!(
        validate(&workload(), &p),
        Err(Violation::Overlap { .. })
    ));
    p.loads[0].to = Place::work(3 * BLOCK);
    p.computes[0].weights.extents[0] = Place::work(3 * BLOCK + BLOCK - 50);
    assert!(validate(&workload(), &p).is_ok());
}

/// All weights resident: b's panels in one load, then a's blocks in two, of which the second is needed first.
fn resident() -> ExecutionPlan {
    let load = |file_block: u64, blocks: u64, at: u64, first| ResidentLoad {
        from: Place::packed(file_block * BLOCK),
        bytes: blocks * BLOCK,
        to: Place::resident(at * BLOCK),
        first,
    };
    let mut p = plan();
    p.loads.clear();
    p.resident = vec![load(1, 1, 3, 0), load(0, 1, 2, 0), load(2, 2, 0, 1)];
    for c in &mut p.computes {
        c.turn = Turn::of(LaneId::COMPUTE);
    }
    p.computes[0].weights.extents[0] = Place::resident(3 * BLOCK - 50);
    p.computes[1].weights.panels = Some(Place::resident(0));
    p.computes[2].weights.panels = Some(Place::resident(BLOCK));
    p
}

#[test]
fn resident_weights_are_there_when_computes_have_waited_for_them() {
    let verdict = validate(&workload(), &resident()).unwrap();
    assert_eq!(verdict.resident_bytes, 4 * BLOCK);
    // Work memory is charged whole, that of residents as far as it is filled.
    assert_eq!(verdict.high_water_bytes, 7 * BLOCK);
    assert_eq!(verdict.lower_bound_bytes, 4 * BLOCK + 1000 + 64);
    let refused = |change: &dyn Fn(&mut ExecutionPlan)| {
        let mut p = resident();
        change(&mut p);
        validate(&workload(), &p).unwrap_err()
    };
    let missing = |v: Violation| matches!(v, Violation::WeightMissing { .. });
    let out_of_order = |v: Violation| matches!(v, Violation::Resident { .. });
    assert!(missing(refused(&|p| p.resident[2].first = 2)));
    assert!(missing(refused(&|p| p.resident.truncate(2))));
    assert!(missing(refused(&|p| p.resident[0].from = Place::packed(0))));
    assert!(missing(refused(&|p| p.resident[0].first = 2)));
    assert!(out_of_order(refused(&|p| p.resident.swap(0, 2))));
    let overlap = refused(&|p| p.resident[2].to = Place::resident(BLOCK));
    assert!(matches!(overlap, Violation::Overlap { .. }), "{overlap}");
}

#[test]
fn everything_lies_in_a_space_of_its_kind() {
    let wrong = |change: &dyn Fn(&mut ExecutionPlan)| {
        let mut p = resident();
        change(&mut p);
        let found = validate(&workload(), &p).unwrap_err();
        assert!(matches!(found, Violation::WrongSpace { .. }), "{found}");
    };
    wrong(&|p| p.buffers[0] = Place::resident(0));
    wrong(&|p| p.workspaces[1] = Place::spill(0));
    wrong(&|p| p.resident[0].to = Place::work(0));
    wrong(&|p| p.resident[0].from = Place::spill(0));
    wrong(&|p| p.buffers[0].space.0 = 9);
    let mut p = plan();
    p.loads[0].to = Place::resident(0);
    p.computes[0].weights.extents[0] = Place::resident(BLOCK - 50);
    assert!(validate(&workload(), &p).is_err());
    // Past the end of the packed file, and spaces that make no sense.
    let mut p = resident();
    p.spaces[2].bytes = 3 * BLOCK;
    let found = validate(&workload(), &p).unwrap_err();
    assert!(matches!(found, Violation::OutsideSpace { .. }), "{found}");
    for change in [
        (|s: &mut Space| s.align = 3) as fn(&mut Space),
        |s| s.align = 64,
        |s| s.bytes = u64::MAX,
    ] {
        let mut p = plan();
        change(&mut p.spaces[0]);
        let found = validate(&workload(), &p).unwrap_err();
        assert!(matches!(found, Violation::Spaces(_)), "{found}");
    }
}

/// A second work memory, such as a device's, is a space like any other.
#[test]
fn a_plan_may_list_any_number_of_spaces() {
    let mut p = plan();
    p.spaces.push(Space {
        name: "more".into(),
        bytes: BLOCK,
        ..p.spaces[0].clone()
    });
    let more = Place {
        space: neap_plan::SpaceId(4),
        offset: 0,
    };
    // Where x and b's workspace lay in the first one, nothing else meets them.
    p.loads[2].to = more;
    p.computes[2].weights.panels = Some(more);
    let verdict = validate(&workload(), &p).unwrap();
    assert_eq!(verdict.high_water_bytes, 4 * BLOCK);
    p.loads[1].to = more;
    p.computes[1].weights.panels = Some(more);
    let found = validate(&workload(), &p).unwrap_err();
    assert!(matches!(found, Violation::Overlap { .. }), "{found}");
}

#[test]
fn a_hostile_plan_or_workload_is_refused_not_believed() {
    let w = workload();
    let mut p = plan();
    p.loads[0].to.offset = u64::MAX - BLOCK + 1;
    assert!(validate(&w, &p).is_err());
    let mut p = plan();
    p.computes[1].step = StepId(u32::MAX);
    assert!(validate(&w, &p).is_err());
    let mut bad = workload();
    bad.steps[1].panels = Some(PanelSpec {
        file_offset: 0,
        panel_bytes: u64::MAX,
        panels: u32::MAX,
        granule: 1,
    });
    assert!(matches!(
        validate(&bad, &plan()),
        Err(Violation::Workload(_))
    ));
    let mut bad = workload();
    bad.buffers[0].live = StepRange::new(0, 3);
    assert!(matches!(
        validate(&bad, &plan()),
        Err(Violation::Workload(_))
    ));
}

/// Step b takes its two panels prepared, 64 bytes each, in a block of their own.
fn prepared() -> (Workload, ExecutionPlan) {
    let (mut w, mut p) = (workload(), plan());
    w.steps[1].prepared_panel_bytes = 64;
    p.spaces[0].bytes = 4 * BLOCK;
    p.prepared = vec![PreparedPanels {
        step: StepId(1),
        at: Place::work(3 * BLOCK),
    }];
    (w, p)
}

#[test]
fn prepared_panels_have_a_place_that_nothing_else_uses() {
    let (w, p) = prepared();
    let verdict = validate(&w, &p).unwrap();
    assert_eq!(verdict.high_water_bytes, 4 * BLOCK);
    assert_eq!(
        verdict.lower_bound_bytes,
        validate(&workload(), &plan()).unwrap().lower_bound_bytes + 128
    );
    let at = |offset| {
        let (w, mut p) = prepared();
        p.prepared[0].at = Place::work(offset);
        validate(&w, &p)
    };
    assert!(at(4 * BLOCK - 128).is_ok());
    assert!(matches!(
        at(4 * BLOCK - 64),
        Err(Violation::OutsideSpace { .. })
    ));
    assert!(matches!(
        at(u64::MAX - 63),
        Err(Violation::OutsideSpace { .. })
    ));
    assert!(matches!(
        at(3 * BLOCK + 4),
        Err(Violation::Misaligned { .. })
    ));
    // On a load, the buffer, the workspace of the step itself.
    for offset in [BLOCK, 2 * BLOCK + 128, 0, 1024] {
        let found = at(offset);
        assert!(matches!(found, Err(Violation::Overlap { .. })), "{found:?}");
    }
    // Where they would fit if they lived only while their step computes.
    let (mut w, mut p) = prepared();
    w.steps[1].workspace_bytes = 0;
    w.buffers[0].live = StepRange::new(0, 1);
    p.prepared[0].at = Place::work(0);
    assert!(matches!(validate(&w, &p), Err(Violation::Overlap { .. })));
}

#[test]
fn prepared_panels_are_listed_for_the_steps_that_take_them() {
    let refused = |change: fn(&mut Workload, &mut ExecutionPlan)| {
        let (mut w, mut p) = prepared();
        change(&mut w, &mut p);
        let found = validate(&w, &p);
        assert!(
            matches!(found, Err(Violation::Prepared { .. })),
            "{found:?}"
        );
    };
    refused(|_, p| p.prepared.clear());
    refused(|_, p| p.prepared[0].step = StepId(0));
    refused(|_, p| p.prepared[0].step = StepId(7));
    refused(|w, _| w.steps[1].prepared_panel_bytes = 0);
    refused(|_, p| {
        let twice = PreparedPanels {
            step: StepId(1),
            at: Place::work(3 * BLOCK + 256),
        };
        p.prepared.push(twice);
    });
    // A step without panels, and more than any memory.
    for (step, bytes) in [(0, 64), (1, 1 << 43), (1, u64::MAX)] {
        let (mut w, p) = prepared();
        w.steps[step].prepared_panel_bytes = bytes;
        let found = validate(&w, &p);
        assert!(matches!(found, Err(Violation::Workload(_))), "{found:?}");
    }
}

#[test]
fn plans_survive_json() {
    let (w, p) = prepared();
    let text = serde_json::to_string(&(&w, &p)).unwrap();
    let back: (Workload, ExecutionPlan) = serde_json::from_str(&text).unwrap();
    assert_eq!(back, (w, p));
    let text = serde_json::to_string(&(workload(), plan(), timeline())).unwrap();
    let back: (Workload, ExecutionPlan, Timeline) = serde_json::from_str(&text).unwrap();
    assert_eq!(back, (workload(), plan(), timeline()));
}

#[test]
fn the_text_shows_memory_and_lanes() {
    let text = render::text(&workload(), &plan(), Some(&timeline()));
    assert!(
        text.contains("streamed  16.0 KiB per run in 3 loads"),
        "{text}"
    );
    assert!(text.contains("200 ns"), "{text}");
    for mark in ['█', '▒', '░', '·'] {
        assert!(text.matches(mark).count() > 1, "no {mark} in\n{text}");
    }
    // Three computes, three columns: a's weights; then the second panel arrives; then it is in use.
    let row = text
        .lines()
        .find(|l| l.trim_start().starts_with("8.0 KiB │"))
        .unwrap();
    assert_eq!(row.chars().rev().take(3).collect::<String>(), "▒░▒");
}

#[test]
fn the_page_is_self_contained_and_escapes_names() {
    let (w, p) = (workload(), plan());
    let verdict = validate(&w, &p).unwrap();
    let page = render::html("a & b <c>", &w, &p, &verdict, &timeline(), None);
    assert!(page.contains("<title>a &amp; b &lt;c&gt; · plan</title>"));
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("__DATA__"));
    let (_, rest) = page
        .split_once("<script id=\"data\" type=\"application/json\">")
        .unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["steps"][0]["name"], "a</script><b>");
    assert_eq!(data["steps"][0]["loaded"], 2 * BLOCK);
    assert_eq!(data["latency"], 200);
    assert_eq!(data["rects"].as_array().unwrap().len(), 5);
}

#[test]
fn the_page_says_who_computes() {
    let (w, p) = (workload(), plan());
    let verdict = validate(&w, &p).unwrap();
    let told = |on_device: Option<&[bool]>| {
        let page = render::html("t", &w, &p, &verdict, &timeline(), on_device);
        let (_, rest) = page
            .split_once("<script id=\"data\" type=\"application/json\">")
            .unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str::<serde_json::Value>(data).unwrap()
    };
    let plain = told(None);
    assert!(plain["on_device"].is_null());
    assert_eq!(plain["copy_busy"].as_array().unwrap().len(), 0);
    assert!(!plain["load_busy"].as_array().unwrap().is_empty());
    let here: Vec<bool> = (0..w.steps.len()).map(|i| i == 0).collect();
    assert_eq!(told(Some(&here))["on_device"][0], true);
}

#[test]
fn the_trace_is_such_as_viewers_read() {
    let mut text = Vec::new();
    let kernel = |id: KernelId| format!("kernel {}", id.0);
    render::write_trace(
        &mut text,
        "a \"title\"",
        &workload(),
        &plan(),
        &timeline(),
        kernel,
    )
    .unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let mut named = std::collections::BTreeMap::new();
    let mut rows: std::collections::BTreeMap<u64, Vec<(i64, i64)>> = Default::default();
    // A reader that cuts fractions of a nanosecond off.
    let ns = |us: &serde_json::Value| (us.as_f64().unwrap() * 1e3) as i64;
    for event in events {
        let row = event["tid"].as_u64().unwrap();
        assert_eq!(event["pid"], 1);
        let keys: Vec<&str> = event
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected: &[&str] = match event["ph"].as_str() {
            Some("M") => &["args", "name", "ph", "pid", "tid"],
            _ => &["args", "cat", "dur", "name", "ph", "pid", "tid", "ts"],
        };
        assert_eq!(keys, expected);
        match event["ph"].as_str().unwrap() {
            "M" => {
                let what = event["name"].as_str().unwrap();
                assert!(["process_name", "thread_name"].contains(&what), "{what}");
                let name = event["args"]["name"].as_str().unwrap();
                named.insert(row, name.to_owned());
            }
            "X" => {
                let (ts, dur) = (ns(&event["ts"]), ns(&event["dur"]));
                assert!(dur > 0 && event["name"].is_string() && event["args"].is_object());
                rows.entry(row).or_default().push((ts, ts + dur));
            }
            other => panic!("an event of kind {other}"),
        }
    }
    // Every row has a name, and its events follow each other.
    for (row, events) in &rows {
        assert!(named.contains_key(row));
        assert!(events.is_sorted() && events.windows(2).all(|e| e[0].1 <= e[1].0));
    }
    let names: Vec<&str> = named.values().map(String::as_str).collect();
    assert_eq!(names, ["a \"title\"", "runs", "compute", "load", "load 2"]);
    // A run, three computes, each with a wait before it, three loads.
    let counts: Vec<usize> = rows.values().map(Vec::len).collect();
    assert_eq!(counts, [1, 6, 2, 1]);
    let with = |category: &str, name: &str| {
        let mut found = (events.iter()).filter(|e| e["cat"] == category && e["name"] == name);
        found
            .next()
            .unwrap_or_else(|| panic!("no {category} of {name}"))
    };
    let second = with("compute", "b [1, 2)");
    assert_eq!(second["args"]["kernel"], "kernel 0");
    assert_eq!(
        (&second["ts"], &second["dur"]),
        (&0.18.into(), &0.019.into())
    );
    assert_eq!(with("load", "b [1, 2)")["args"]["bytes"], BLOCK);
    assert_eq!(with("load", "a</script><b>")["args"]["file_offset"], 0);
}

/// Of steps that use the same panels again and again there may be many, but not without end.
#[test]
fn more_panels_than_any_network_has_are_refused() {
    let step = StepSpec {
        panels: Some(PanelSpec {
            file_offset: 4096,
            panel_bytes: 64,
            panels: 1 << 16,
            granule: 4,
        }),
        ..StepSpec::default()
    };
    let of = |steps| Workload {
        steps: vec![step.clone(); steps],
        ..Workload::default()
    };
    assert_eq!(neap_plan::check_workload(&of(64)), Ok(()));
    assert!(neap_plan::check_workload(&of(65)).is_err());
}
