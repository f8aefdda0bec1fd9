//! A link to storage as cost profiles describe it, under virtual time: loads of both files go one way, in
//! order, stores go the other, and what moves both ways at once may be slower.
//!
//! ```text
//!   loads    handed over ─► waits for one of `depth` places ─► latency ─► its turn ─► complete
//!   stores   the same, on their own; while both move, each at half its rate if the link is shared
//! ```
//! Bytes are copied when a transfer completes, so that what is used or overwritten too early shows.

use neap_store::{LoadTag, RangeRead, Source, Spill, StoreError, VirtualClock};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What destinations hold until their load is complete.
const NOT_YET_LOADED: u8 = 0xA5;

#[derive(Clone, Copy)]
pub struct LinkModel {
    pub load_ns_per_byte: u64,
    pub store_ns_per_byte: u64,
    pub latency_ns: u64,
    /// Transfers under way at once, each way.
    pub depth: usize,
    /// Half the rate each way while both ways move.
    pub is_shared: bool,
    /// No load is reported before all are complete that were handed over.
    pub reports_together: bool,
}

/// A file at the end of a link; the file of weights and the spill file share one.
pub struct Port {
    link: Arc<Mutex<Link>>,
    file: usize,
}

impl Port {
    /// When something happens next on the link, all that has happened by now apart.
    pub fn next(&self) -> impl Fn() -> Option<u64> + Send + Sync + use<> {
        let link = self.link.clone();
        move || {
            let mut link = link.lock().unwrap();
            let now_ns = link.clock.now_ns();
            link.play(now_ns);
            link.next_ns()
        }
    }
}

/// The file of weights, and a spill file of so many bytes.
pub fn ports(model: LinkModel, weights: &[u8], spill_bytes: u64, clock: VirtualClock) -> [Port; 2] {
    let link = Arc::new(Mutex::new(Link {
        played_ns: clock.now_ns(),
        clock,
        model,
        ways: [Way::default(), Way::default()],
        files: [weights.to_vec(), vec![0; spill_bytes as usize]],
        in_flight: [0; 2],
        complete: [Vec::new(), Vec::new()],
    }));
    [0, 1].map(|file| Port {
        link: link.clone(),
        file,
    })
}

struct Link {
    clock: VirtualClock,
    /// Everything up to here has happened.
    played_ns: u64,
    model: LinkModel,
    /// Loads, stores.
    ways: [Way; 2],
    files: [Vec<u8>; 2],
    /// By file: submitted and not yet reported, and of those the complete.
    in_flight: [usize; 2],
    complete: [Vec<LoadTag>; 2],
}

// SAFETY: the pointers within are destinations and sources of transfers, valid until reported by the
// contracts of `Source` and `Spill`, from whichever thread.
unsafe impl Send for Link {}

#[derive(Default)]
struct Way {
    waiting: VecDeque<Transfer>,
    moving: VecDeque<Transfer>,
}

struct Transfer {
    file: usize,
    tag: LoadTag,
    range: RangeRead,
    first_byte_ns: u64,
    /// What is left to move, in halves of nanoseconds at the full rate.
    left: u64,
}

impl Way {
    fn is_moving(&self, now_ns: u64) -> bool {
        (self.moving.front()).is_some_and(|t| t.first_byte_ns <= now_ns)
    }

    fn next_ns(&self, now_ns: u64, halves_per_ns: u64) -> Option<u64> {
        let head = self.moving.front()?;
        Some(if head.first_byte_ns > now_ns {
            head.first_byte_ns
        } else {
            now_ns + head.left.div_ceil(halves_per_ns)
        })
    }
}

impl Link {
    fn push(&mut self, way: usize, file: usize, tag: LoadTag, range: RangeRead) {
        self.play(self.clock.now_ns());
        let rates = [self.model.load_ns_per_byte, self.model.store_ns_per_byte];
        self.ways[way].waiting.push_back(Transfer {
            file,
            tag,
            range,
            first_byte_ns: 0,
            left: 2 * range.len_bytes as u64 * rates[way],
        });
        self.in_flight[file] += 1;
        self.start();
    }

    fn start(&mut self) {
        let first_byte_ns = self.played_ns + self.model.latency_ns;
        for way in &mut self.ways {
            while way.moving.len() < self.model.depth
                && let Some(next) = way.waiting.pop_front()
            {
                way.moving.push_back(Transfer {
                    first_byte_ns,
                    ..next
                });
            }
        }
    }

    fn halves_per_ns(&self) -> u64 {
        let both = self.ways.iter().all(|way| way.is_moving(self.played_ns));
        if both && self.model.is_shared { 1 } else { 2 }
    }

    /// When something happens next.
    fn next_ns(&self) -> Option<u64> {
        let halves = self.halves_per_ns();
        let nexts = self.ways.iter();
        nexts
            .filter_map(|way| way.next_ns(self.played_ns, halves))
            .min()
    }

    /// Lets happen what does until then.
    fn play(&mut self, until_ns: u64) {
        while self.played_ns < until_ns {
            let halves = self.halves_per_ns();
            let next_ns = self.next_ns().map_or(until_ns, |next| next.min(until_ns));
            let moved = (next_ns - self.played_ns) * halves;
            for way in 0..2 {
                if self.ways[way].is_moving(self.played_ns) {
                    let head = &mut self.ways[way].moving[0];
                    head.left = head.left.saturating_sub(moved);
                    if head.left == 0 {
                        self.end(way);
                    }
                }
            }
            self.played_ns = next_ns;
            self.start();
        }
    }

    /// What may be reported of a file.
    fn reportable(&mut self, file: usize) -> Vec<LoadTag> {
        let loads = &self.ways[0];
        let waits = file == 0 && !(loads.waiting.is_empty() && loads.moving.is_empty());
        if waits && self.model.reports_together {
            return Vec::new();
        }
        std::mem::take(&mut self.complete[file])
    }

    fn end(&mut self, way: usize) {
        let Some(transfer) = self.ways[way].moving.pop_front() else {
            return;
        };
        let range = transfer.range;
        let begin = range.file_offset as usize;
        let bytes = &mut self.files[transfer.file][begin..begin + range.len_bytes];
        // SAFETY: valid until reported, which it is not yet; our own memory is never handed out.
        unsafe {
            match way {
                0 => range
                    .dst
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
                _ => range
                    .dst
                    .copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()),
            }
        }
        self.complete[transfer.file].push(transfer.tag);
    }
}

impl Port {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap()
    }
}

impl Source for Port {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        // SAFETY: the destination is the link's from here on, by the contract.
        unsafe { dst.write_bytes(NOT_YET_LOADED, len_bytes) };
        let range = RangeRead {
            file_offset,
            dst,
            len_bytes,
        };
        self.link().push(0, self.file, tag, range);
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        let mut link = self.link();
        let now_ns = link.clock.now_ns();
        link.play(now_ns);
        let mut complete = link.reportable(self.file);
        while wait && complete.is_empty() {
            let next_ns = link.next_ns().ok_or(StoreError::NothingInFlight)?;
            link.clock.advance_to_ns(next_ns);
            link.play(next_ns);
            complete = link.reportable(self.file);
        }
        link.in_flight[self.file] -= complete.len();
        drop(link);
        complete.into_iter().for_each(done);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.link().in_flight[self.file]
    }

    /// Takes no time: for what no model of a simulation has.
    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        let link = self.link();
        for read in reads {
            let begin = read.file_offset as usize;
            let bytes = &link.files[self.file][begin..begin + read.len_bytes];
            // SAFETY: valid during the call, by the contract.
            unsafe { (read.dst).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "link"
    }
}

impl Spill for Port {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let range = RangeRead {
            file_offset,
            dst: src.cast_mut(),
            len_bytes,
        };
        self.link().push(1, self.file, tag, range);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.link().files[self.file].len() as u64
    }
}
