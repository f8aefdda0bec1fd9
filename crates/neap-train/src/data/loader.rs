//! Batches, read and prepared on a thread of their own while the last one is trained on.
//!
//! Buffers go round: the thread fills one while another is in use, so the memory is that of a few batches
//! ([`memory_bytes`]) whatever the data set's size.

use super::sample::{SampleType, Samples};
use crate::error::{Result, TrainError};
use crate::random::{Draw, Purpose};
use neap_ir::Literal;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// One is in use, one is ready, one is being filled.
const BATCHES: usize = 3;

/// Inputs and targets of some samples.
#[derive(Debug, Clone)]
pub struct Batch {
    pub input: Literal,
    pub target: Literal,
    /// Samples that count; places behind them repeat the last one.
    pub count: usize,
}

impl Batch {
    /// Room for `size` samples.
    pub fn new(ty: &SampleType, size: usize) -> Batch {
        let zeros = |of: &neap_ir::TensorType| {
            let shape = [&[size], &of.shape[..]].concat();
            Literal::zeros(of.dtype, &shape)
        };
        Batch {
            input: zeros(&ty.input),
            target: zeros(&ty.target),
            count: 0,
        }
    }

    /// Reads the samples `which`, at most as many as there is room for.
    ///
    /// # Errors
    /// What [`Samples::fill`] says.
    pub fn fill(
        &mut self,
        samples: &dyn Samples,
        which: &[u32],
        augment: Option<Augment>,
    ) -> Result<()> {
        let size = self.input.shape()[0];
        let input_bytes = self.input.len_bytes() / size;
        let target_bytes = self.target.len_bytes() / size;
        self.count = which.len();
        let inputs = self.input.bytes_mut().chunks_exact_mut(input_bytes);
        let targets = self.target.bytes_mut().chunks_exact_mut(target_bytes);
        for (place, (input, target)) in inputs.zip(targets).enumerate() {
            let Some(&index) = which.get(place).or(which.last()) else {
                break;
            };
            let draw = augment.map(|a| Draw::new(Purpose::Augment, a.seed, a.epoch, index.into()));
            samples.fill(index as usize, draw, input, target)?;
        }
        Ok(())
    }
}

/// Augmentation is a function of these and of the sample's number.
#[derive(Debug, Clone, Copy)]
pub struct Augment {
    pub seed: u64,
    pub epoch: u64,
}

/// What batches take that are under way at once.
pub fn memory_bytes(ty: &SampleType, size: usize) -> u64 {
    let sample = ty.input.len_bytes() + ty.target.len_bytes();
    (BATCHES * size * sample) as u64
}

/// A pass over samples.
pub struct Loader {
    ready: Option<Receiver<Result<Batch>>>,
    spare: SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Goes over `order`, `size` samples at a time, in the given range of batches.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(
        samples: Arc<dyn Samples>,
        ty: &SampleType,
        size: usize,
        order: Vec<u32>,
        batches: Range<usize>,
        augment: Option<Augment>,
    ) -> Result<Loader> {
        let (send, ready) = sync_channel::<Result<Batch>>(1);
        let (spare, used) = sync_channel::<Batch>(BATCHES);
        for _ in 0..BATCHES {
            // There is room for all.
            let _ = spare.send(Batch::new(ty, size));
        }
        let work = move || {
            for number in batches {
                let end = order.len().min((number + 1) * size);
                let which = &order[number * size..end];
                let Ok(mut batch) = used.recv() else { return };
                let filled = batch.fill(&*samples, which, augment);
                let failed = filled.is_err();
                if send.send(filled.map(|()| batch)).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("neap-data".into())
            .spawn(work)
            .map_err(|e| TrainError::Defect(format!("no thread for data: {e}")))?;
        Ok(Loader {
            ready: Some(ready),
            spare,
            thread: Some(thread),
        })
    }

    /// The next batch, `None` at the end. Give it back with [`Loader::done`].
    ///
    /// # Errors
    /// What [`Samples::fill`] says.
    pub fn next(&mut self) -> Result<Option<Batch>> {
        let Some(batch) = self.ready.as_ref().and_then(|r| r.recv().ok()) else {
            // The thread has ended: in order, or by a panic that must not pass for the end of the data.
            return match self.thread.take().map(JoinHandle::join) {
                Some(Err(_)) => Err(TrainError::Defect("reading data panicked".into())),
                _ => Ok(None),
            };
        };
        batch.map(Some)
    }

    /// Its memory is used for another.
    pub fn done(&mut self, batch: Batch) {
        // The thread may have ended.
        let _ = self.spare.send(batch);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Whatever it waits for ends now.
        self.ready = None;
        let (nowhere, _) = sync_channel(1);
        self.spare = nowhere;
        if let Some(thread) = self.thread.take() {
            // A panic there was said on standard error.
            let _ = thread.join();
        }
    }
}
