//! Where the program waits for the card: a job ends there, unless the program says itself where its jobs end.
//! And captures of streams into graphs, during which nobody may wait.

use crate::export::export;
use crate::memory::{self, CAPTURES};
use crate::real::{Status, driver};
use crate::work::pass;
use crate::{agent, gate};
use std::sync::atomic::Ordering::*;

/// After a wait of the program.
fn waited(status: Status) -> Status {
    if let Some(agent) = agent::connected()
        && CAPTURES.load(Relaxed) == 0
    {
        agent.after_wait();
    }
    status
}

/// A capture begins: the program keeps its turn until it ends.
fn begin(act: impl FnOnce() -> Status) -> Status {
    let Some(agent) = agent::get() else {
        return act();
    };
    if let Err(status) = agent.enter() {
        return status;
    }
    CAPTURES.fetch_add(1, Relaxed);
    let status = act();
    if status != 0 {
        ended();
    }
    status
}

fn ended() {
    if CAPTURES.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) == Ok(1) {
        memory::wait_for_card();
        memory::get().free_deferred();
    }
    gate::leave();
}

fn end(act: impl FnOnce() -> Status) -> Status {
    let status = act();
    if agent::connected().is_some() && CAPTURES.load(Relaxed) > 0 {
        ended();
    }
    status
}

export! {
    fn cuCtxSynchronize() {
        waited(driver!(cuCtxSynchronize()))
    }

    fn cuCtxSynchronize_v2(context: usize) {
        waited(driver!(cuCtxSynchronize_v2(context => usize)))
    }

    fn cuStreamSynchronize(stream: usize) {
        waited(driver!(cuStreamSynchronize(stream => usize)))
    }

    fn cuStreamSynchronize_ptsz(stream: usize) {
        waited(driver!(cuStreamSynchronize_ptsz(stream => usize)))
    }

    fn cuEventSynchronize(event: usize) {
        waited(driver!(cuEventSynchronize(event => usize)))
    }

    fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) {
        waited(pass(|| driver!(cuMemcpyDtoH_v2(to => usize, from => usize, bytes => usize))))
    }

    fn cuMemcpyDtoH_v2_ptds(to: usize, from: usize, bytes: usize) {
        waited(pass(|| driver!(cuMemcpyDtoH_v2_ptds(to => usize, from => usize, bytes => usize))))
    }

    fn cuStreamBeginCapture_v2(stream: usize, mode: usize) {
        begin(|| driver!(cuStreamBeginCapture_v2(stream => usize, mode => usize)))
    }

    fn cuStreamBeginCapture_v2_ptsz(stream: usize, mode: usize) {
        begin(|| driver!(cuStreamBeginCapture_v2_ptsz(stream => usize, mode => usize)))
    }

    fn cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: usize,
    ) {
        begin(|| driver!(cuStreamBeginCaptureToGraph(
            stream => usize, graph => usize, nodes => usize, edges => usize, count => usize, mode => usize
        )))
    }

    fn cuStreamBeginCaptureToGraph_ptsz(
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: usize,
    ) {
        begin(|| driver!(cuStreamBeginCaptureToGraph_ptsz(
            stream => usize, graph => usize, nodes => usize, edges => usize, count => usize, mode => usize
        )))
    }

    fn cuStreamEndCapture(stream: usize, graph: usize) {
        end(|| driver!(cuStreamEndCapture(stream => usize, graph => usize)))
    }

    fn cuStreamEndCapture_ptsz(stream: usize, graph: usize) {
        end(|| driver!(cuStreamEndCapture_ptsz(stream => usize, graph => usize)))
    }
}
