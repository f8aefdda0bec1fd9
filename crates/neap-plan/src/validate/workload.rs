//! Whether a workload's numbers make sense.

use crate::{BLOCK_BYTES, StepSpec, Violation, Workload};

/// Whether a workload's numbers make sense. Planners and `validate` may then use them without fear of
/// overflow or of allocating what no real network needs, also when they come from a hostile file.
///
/// # Errors
/// The first [`Violation`] found.
pub fn check_workload(w: &Workload) -> Result<(), Violation> {
    const LIMIT: u64 = 1 << 44;
    const MOST_ITEMS: usize = 1 << 17;
    // An unrolled recurrent network computes with the same panels again and again.
    const MOST_PANELS: u64 = 1 << 22;
    let bad = |why: String| Err(Violation::Workload(why));
    let fits = |offset: u64, bytes: u64| offset < LIMIT && bytes < LIMIT;
    let extents: usize = w.steps.iter().map(|s| s.extents.len()).sum();
    let uses: usize = w.steps.iter().map(|s| s.reads.len() + s.writes.len()).sum();
    let items = [w.steps.len(), w.buffers.len(), extents, uses];
    if items.iter().any(|&items| items > MOST_ITEMS) {
        return bad("too many steps, buffers, extents or uses".into());
    }
    let panels = |s: &StepSpec| s.panels.map_or(0, |p| u64::from(p.panels));
    if w.steps.iter().map(panels).sum::<u64>() > MOST_PANELS {
        return bad("too many panels".into());
    }
    let mut prepared = 0u64;
    for (i, s) in w.steps.iter().enumerate() {
        if s.prepared_panel_bytes > 0 && s.panels.is_none() {
            return bad(format!("step {i} has prepared panels and no others"));
        }
        prepared = prepared.saturating_add(s.prepared_bytes());
        if prepared >= LIMIT {
            return bad(format!("the prepared panels up to step {i} are too large"));
        }
        if let Some(p) = s.panels {
            if p.panels == 0 || p.panel_bytes == 0 || p.granule == 0 {
                return bad(format!("step {i} has panels of no size"));
            }
            let whole = p.panel_bytes.checked_mul(u64::from(p.panels));
            if !whole.is_some_and(|bytes| fits(p.file_offset, bytes)) {
                return bad(format!("the panels of step {i} end past any file"));
            }
        }
        let table = s.rows.iter().map(|r| (r.file_offset, r.bytes));
        for (offset, bytes) in s
            .extents
            .iter()
            .map(|e| (e.file_offset, e.bytes))
            .chain(table)
        {
            if bytes == 0 || !fits(offset, bytes) {
                return bad(format!(
                    "step {i} has an extent of {bytes} bytes at {offset}"
                ));
            }
        }
        for buffer in s.reads.iter().chain(&s.writes) {
            let spec = w.buffers.get(buffer.index());
            if spec.is_none_or(|b| !b.live.contains(i as u32)) {
                return bad(format!(
                    "step {i} uses buffer {}, which does not live then",
                    buffer.0
                ));
            }
        }
        let rows_bytes = s.rows.map_or(0, |r| r.rows_workspace_bytes);
        if !fits(rows_bytes, s.workspace_bytes) {
            return bad(format!("the workspace of step {i} is too large"));
        }
    }
    let in_order = w.states.windows(2).all(|pair| pair[0] < pair[1]);
    if !in_order
        || w.states
            .last()
            .is_some_and(|s| s.index() >= w.buffers.len())
    {
        return bad("its states are not in order, or no buffers".into());
    }
    for (i, b) in w.buffers.iter().enumerate() {
        if !b.align.is_power_of_two() || b.align > BLOCK_BYTES || b.bytes >= LIMIT {
            return bad(format!(
                "buffer {i} has {} bytes aligned to {}",
                b.bytes, b.align
            ));
        }
        let is_state = w.states.binary_search(&crate::BufferId(i as u32)).is_ok();
        let is_whole = b.align == BLOCK_BYTES && b.bytes.is_multiple_of(BLOCK_BYTES) && b.bytes > 0;
        let always = crate::StepRange::new(0, w.steps.len() as u32);
        if is_state && (!is_whole || b.live != always || b.kept) {
            return bad(format!(
                "buffer {i} is a state, and not whole blocks that live in all steps"
            ));
        }
        if b.kept && b.live.end as usize != w.steps.len() {
            return bad(format!("buffer {i} is kept and dies before the run ends"));
        }
        if b.live.end as usize > w.steps.len() || b.live.begin > b.live.end {
            return bad(format!(
                "buffer {i} lives in steps {}..{}",
                b.live.begin, b.live.end
            ));
        }
    }
    Ok(())
}
