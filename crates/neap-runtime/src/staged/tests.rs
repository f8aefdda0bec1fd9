//! Staged loads and stores over a link that is slow, and files that fail.

use super::*;
use crate::device::MemoryRange;
use neap_store::{
    AlignedBuf, Fault, FaultScript, MemoryModel, MemorySource, Source, Spill, VirtualClock,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Copies happen when they are asked for the second time, or waited for.
struct SlowLink {
    pinned: Vec<AlignedBuf>,
    waiting: Vec<(u64, Transfer)>,
    asked: Rc<RefCell<u32>>,
    /// Bytes of each transfer, by group.
    groups: Rc<RefCell<Vec<Vec<u64>>>>,
    ticket: u64,
    done: u64,
}

// SAFETY: tests use it on one thread.
unsafe impl Send for SlowLink {}

impl SlowLink {
    fn new() -> (SlowLink, Rc<RefCell<u32>>) {
        let asked = Rc::new(RefCell::new(0));
        let link = SlowLink {
            pinned: Vec::new(),
            waiting: Vec::new(),
            asked: asked.clone(),
            groups: Rc::default(),
            ticket: 0,
            done: 0,
        };
        (link, asked)
    }

    fn finish(&mut self, until: u64) {
        for (_, t) in self.waiting.extract_if(.., |(ticket, _)| *ticket <= until) {
            // SAFETY: both are memory of the test, apart from each other.
            unsafe { std::ptr::copy_nonoverlapping(t.from, t.to, t.bytes as usize) };
        }
        self.done = self.done.max(until);
    }
}

impl Link for SlowLink {
    fn pin(&mut self, bytes: u64) -> Result<MemoryRange, String> {
        let mut memory = AlignedBuf::zeroed(bytes as usize).map_err(|e| e.to_string())?;
        let start = memory.as_mut_ptr();
        self.pinned.push(memory);
        Ok(MemoryRange { start, bytes })
    }

    unsafe fn copy(&mut self, transfers: &[Transfer]) -> Result<u64, String> {
        self.ticket += 1;
        let bytes = transfers.iter().map(|t| t.bytes);
        self.groups.borrow_mut().push(bytes.collect());
        self.waiting
            .extend(transfers.iter().map(|&t| (self.ticket, t)));
        Ok(self.ticket)
    }

    fn reached(&mut self) -> Result<u64, String> {
        *self.asked.borrow_mut() += 1;
        if self.asked.borrow().is_multiple_of(2) {
            self.finish(self.ticket);
        }
        Ok(self.done)
    }

    fn wait(&mut self, ticket: u64) -> Result<(), String> {
        self.finish(ticket);
        Ok(())
    }
}

const BLOCK: usize = 4096;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 64 * 31 + i) as u8).collect()
}

fn packed(len: usize, faults: FaultScript) -> (Staged<dyn Source>, Vec<u8>) {
    let content = bytes(len);
    let clock = VirtualClock::new();
    let source = MemorySource::new(content.clone(), MemoryModel::default(), clock, faults);
    let source: Box<dyn Source> = Box::new(source.expect("a device"));
    let staged = Staged::new(source, Box::new(SlowLink::new().0), SLOTS).expect("pins");
    (staged, content)
}

fn device(len: usize) -> AlignedBuf {
    AlignedBuf::zeroed(len).expect("memory")
}

/// Polls until nothing is in flight; the tags in the order in which they were told.
fn all(staged: &mut Staged<dyn Source>) -> Vec<u64> {
    let mut told = Vec::new();
    while staged.in_flight() > 0 {
        let polled = staged.poll(true, &mut |_, _| Ok(()), &mut |tag| told.push(tag.0));
        polled.expect("polls");
    }
    told
}

#[test]
fn loads_of_any_length_arrive_whole() {
    let len = 40 * SLOT_BYTES;
    let (mut staged, content) = packed(len, FaultScript::default());
    let mut memory = device(len);
    let start = memory.as_mut_ptr();
    let lens = [
        BLOCK,
        SLOT_BYTES,
        SLOT_BYTES + BLOCK,
        7 * SLOT_BYTES,
        20 * SLOT_BYTES,
        3 * BLOCK,
    ];
    let mut at = 0;
    for (tag, &len) in lens.iter().enumerate() {
        // SAFETY: the range is the test's, and lives.
        let sent = unsafe {
            staged.submit(
                LoadTag(tag as u64),
                at as u64,
                start.wrapping_add(at),
                len,
                false,
            )
        };
        sent.expect("takes it");
        at += len;
    }
    let mut checked = 0;
    let mut told = Vec::new();
    while staged.in_flight() > 0 {
        let mut check = |offset: u64, piece: &[u8]| {
            assert_eq!(
                piece,
                &content[offset as usize..offset as usize + piece.len()]
            );
            checked += piece.len();
            Ok(())
        };
        staged
            .poll(true, &mut check, &mut |tag| told.push(tag.0))
            .expect("polls");
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3, 4, 5]);
    assert_eq!(checked, at);
    assert!(memory[..at] == content[..at]);
    assert!(memory[at..].iter().all(|b| *b == 0));
}

#[test]
fn copies_are_read_once() {
    let len = 4 * SLOT_BYTES;
    let (mut staged, content) = packed(len, FaultScript::default());
    let copy = |from: usize, bytes: usize, to: u64| HostCopy {
        from: neap_plan::Place::packed(from as u64),
        bytes: bytes as u64,
        to: neap_plan::Place::new(neap_plan::SpaceId(4), to),
    };
    let first = SLOT_BYTES + BLOCK;
    let copies = [copy(0, first, 0), copy(3 * SLOT_BYTES, BLOCK, first as u64)];
    staged.keep(&copies, (first + BLOCK) as u64).expect("pins");
    let mut memory = device(len);
    let start = memory.as_mut_ptr();
    let ranges = [
        (0, first),
        (first, BLOCK),
        (3 * SLOT_BYTES, BLOCK),
        (0, BLOCK),
    ];
    for (run, expected) in [(0, 0), (1, first + BLOCK), (2, 2 * (first + BLOCK))] {
        for (tag, &(at, len)) in ranges.iter().enumerate() {
            let to = start.wrapping_add(if tag == 3 { 2 * SLOT_BYTES } else { at });
            // SAFETY: the range is the test's, and lives; the last is loaded to elsewhere.
            let sent = unsafe { staged.submit(LoadTag(tag as u64), at as u64, to, len, false) };
            sent.expect("takes it");
        }
        assert_eq!(all(&mut staged).len(), 4);
        assert_eq!(staged.copied_bytes(), expected as u64, "run {run}");
        assert!(memory[..first + BLOCK] == content[..first + BLOCK]);
        assert!(memory[2 * SLOT_BYTES..][..BLOCK] == content[..BLOCK]);
        memory.fill(0);
    }
    staged.forget_copies();
    // SAFETY: as above.
    unsafe { staged.submit(LoadTag(9), 0, start, first, false) }.expect("takes it");
    all(&mut staged);
    assert_eq!(staged.copied_bytes(), 2 * (first + BLOCK) as u64);
}

/// Long ones fill a link, and several groups of them are on their way.
#[test]
fn copies_that_are_there_move_in_long_pieces() {
    let len = 40 * SLOT_BYTES + BLOCK;
    let content = bytes(len);
    let (model, faults) = (MemoryModel::default(), FaultScript::default());
    let source = MemorySource::new(content.clone(), model, VirtualClock::new(), faults);
    let source: Box<dyn Source> = Box::new(source.expect("a device"));
    let link = SlowLink::new().0;
    let groups = link.groups.clone();
    let mut staged = Staged::new(source, Box::new(link), SLOTS).expect("pins");
    let copy = HostCopy {
        from: neap_plan::Place::packed(0),
        bytes: len as u64,
        to: neap_plan::Place::new(neap_plan::SpaceId(4), 0),
    };
    staged.keep(&[copy], len as u64).expect("pins");
    let mut memory = device(len);
    for _ in 0..2 {
        memory.fill(0);
        groups.borrow_mut().clear();
        // SAFETY: the range is the test's, and lives.
        unsafe { staged.submit(LoadTag(0), 0, memory.as_mut_ptr(), len, false) }.expect("takes it");
        assert_eq!(all(&mut staged), [0]);
        assert!(memory[..] == content[..]);
    }
    const MIB: u64 = 1 << 20;
    let rest = BLOCK as u64;
    let expected = [vec![4 * MIB; 2], vec![4 * MIB; 2], vec![4 * MIB, rest]];
    assert_eq!(*groups.borrow(), expected);
}

#[test]
fn a_read_that_fails_is_told_and_the_next_try_is_whole() {
    let len = 6 * SLOT_BYTES;
    let (mut staged, content) = packed(len, FaultScript::at([(3, Fault::Error { errno: 5 })]));
    let mut memory = device(len);
    let start = memory.as_mut_ptr();
    // SAFETY: the range is the test's, and lives.
    unsafe { staged.submit(LoadTag(0), 0, start, len, false) }.expect("takes it");
    let mut failed = None;
    while failed.is_none() && staged.in_flight() > 0 {
        failed = staged.poll(true, &mut |_, _| Ok(()), &mut |_| {}).err();
    }
    assert!(matches!(failed, Some(StoreError::Read { .. })));
    staged.drain().expect("drains");
    assert_eq!(staged.in_flight(), 0);
    // SAFETY: as above.
    unsafe { staged.submit(LoadTag(1), 0, start, len, false) }.expect("takes it");
    assert_eq!(all(&mut staged), [1]);
    assert!(memory[..] == content[..]);
}

#[test]
fn what_is_corrupt_is_told() {
    let (mut staged, _) = packed(4 * SLOT_BYTES, FaultScript::default());
    let mut memory = device(4 * SLOT_BYTES);
    // SAFETY: the range is the test's, and lives.
    unsafe { staged.submit(LoadTag(0), 0, memory.as_mut_ptr(), 2 * SLOT_BYTES, false) }
        .expect("takes it");
    let corrupt = |offset| StoreError::Corrupt {
        what: "weights",
        offset,
    };
    let mut told = Ok(());
    while told.is_ok() && staged.in_flight() > 0 {
        told = staged.poll(true, &mut |at, _| Err(corrupt(at)), &mut |_| {
            panic!("not done")
        });
    }
    assert!(matches!(told, Err(StoreError::Corrupt { .. })));
}

#[test]
fn ranges_and_fetches_pass_through_the_host() {
    let (mut staged, content) = packed(8 * ASIDE_BYTES, FaultScript::default());
    let mut memory = device(8 * ASIDE_BYTES);
    let start = memory.as_mut_ptr();
    let read = |at: usize, len_bytes| RangeRead {
        file_offset: at as u64,
        dst: start.wrapping_add(at),
        len_bytes,
    };
    let big = 2 * ASIDE_BYTES + BLOCK;
    let reads = [
        read(0, BLOCK),
        read(2 * BLOCK, BLOCK),
        read(4 * BLOCK, big),
        read(4 * BLOCK + big, ASIDE_BYTES),
    ];
    // SAFETY: the ranges are the test's, and live.
    unsafe { staged.read_ranges(&reads) }.expect("reads");
    for read in &reads {
        let at = read.file_offset as usize;
        assert!(memory[at..at + read.len_bytes] == content[at..at + read.len_bytes]);
    }
    assert!(memory[BLOCK..2 * BLOCK].iter().all(|b| *b == 0));
    let mut out = vec![0; big];
    // SAFETY: as above.
    unsafe { staged.fetch(start.wrapping_add(4 * BLOCK), &mut out) }.expect("fetches");
    assert!(out[..] == content[4 * BLOCK..4 * BLOCK + big]);
}

#[test]
fn what_the_host_keeps_comes_back() {
    let len = 9 * BLOCK;
    let (mut link, asked) = SlowLink::new();
    assert_eq!(*asked.borrow(), 0);
    link.pin(4096).expect("pins");
    let mut spill = crate::host_spill::HostSpill::new(Box::new(link), len as u64).expect("pins");
    let content = bytes(len);
    let (mut from, mut to) = (device(len), device(len));
    from.copy_from_slice(&content);
    let mut told = Vec::new();
    // SAFETY: the ranges are the test's, and live.
    unsafe {
        spill
            .submit_write(LoadTag(1), 0, from.as_ptr(), 5 * BLOCK)
            .expect("takes it");
        let rest = from.as_ptr().wrapping_add(5 * BLOCK);
        spill
            .submit_write(LoadTag(2), 5 * BLOCK as u64, rest, 4 * BLOCK)
            .expect("takes it");
    }
    spill.flush();
    // The slow link has nothing complete when it is first asked.
    spill
        .poll(false, &mut |tag| told.push(tag.0))
        .expect("polls");
    assert!(told.is_empty());
    while spill.in_flight() > 0 {
        spill
            .poll(true, &mut |tag| told.push(tag.0))
            .expect("polls");
    }
    assert_eq!(told, [1, 2]);
    from.fill(0);
    // SAFETY: as above.
    unsafe { spill.submit(LoadTag(3), 0, to.as_mut_ptr(), len) }.expect("takes it");
    spill.drain().expect("drains");
    assert!(to[..] == content[..]);
    // SAFETY: as above.
    let outside = unsafe { spill.submit(LoadTag(4), BLOCK as u64, to.as_mut_ptr(), len) };
    assert!(matches!(outside, Err(StoreError::OutOfRange { .. })));
    assert!(matches!(
        spill.poll(true, &mut |_| {}),
        Err(StoreError::NothingInFlight)
    ));
}

#[test]
fn what_is_stored_comes_back() {
    let len = 11 * SLOT_BYTES + 3 * BLOCK;
    let clock = VirtualClock::new();
    let file = MemorySource::spill(len, MemoryModel::default(), clock, FaultScript::default());
    let file = Box::new(file.expect("a device"));
    let mut spill = StagedSpill::new(file, Box::new(SlowLink::new().0)).expect("pins");
    let content = bytes(len);
    let (mut from, mut to) = (device(len), device(len));
    from.copy_from_slice(&content);
    let wait = |spill: &mut StagedSpill| {
        while spill.in_flight() > 0 {
            spill.poll(true, &mut |_| {}).expect("polls");
        }
    };
    // SAFETY: the ranges are the test's, and live.
    unsafe { spill.submit_write(LoadTag(1), 0, from.as_ptr(), len) }.expect("takes it");
    wait(&mut spill);
    from.fill(0);
    // SAFETY: as above.
    unsafe { spill.submit(LoadTag(2), 0, to.as_mut_ptr(), len) }.expect("takes it");
    wait(&mut spill);
    assert!(to[..] == content[..]);
}
