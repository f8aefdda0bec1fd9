//! Sources allocate when they are made, and never after. One test: the count is global.

#[path = "store/common.rs"]
mod common;

use common::{Rng, write_packed};
use neap_store::{
    AlignedBuf, BLOCK, FaultScript, IoMode, LoadTag, MemoryModel, MemorySource, PackedFile,
    RandomFaults, RangeRead, Source, VirtualClock,
};
use neap_testing::{Allocations, Counting, counted};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn loads_and_batches_do_not_allocate() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_packed(folder.path(), &Rng(20).bytes(512 * BLOCK), b"toc");
    let mut packed = PackedFile::open(&path).unwrap();
    let mut verifier = packed.take_verifier().unwrap();
    let retries = RandomFaults {
        seed: 1,
        short_per_mille: 200,
        retry_per_mille: 200,
        ..RandomFaults::default()
    };
    let memory = MemorySource::from_file(
        &path,
        MemoryModel {
            piece_bytes: 4 * BLOCK,
            ..MemoryModel::default()
        },
        VirtualClock::new(),
        FaultScript::random(retries),
    );
    let sources: [Box<dyn Source>; 3] = [
        Box::new(memory.unwrap()),
        packed.open_source(IoMode::Auto).unwrap(),
        packed.open_source(IoMode::Pread).unwrap(),
    ];
    let mut arena = AlignedBuf::zeroed(512 * BLOCK).unwrap();
    let base = arena.as_mut_ptr();
    let block = BLOCK as u64;
    let reads: Vec<RangeRead> = (0..100)
        .map(|i| RangeRead {
            file_offset: (i * 5 + 1) * block,
            dst: base.wrapping_add((400 + i as usize) * BLOCK),
            len_bytes: BLOCK,
        })
        .collect();
    for mut source in sources {
        let mut round = || {
            for i in 0..40 {
                let dst = base.wrapping_add(i * 10 * BLOCK);
                let offset = (i as u64 * 10 + 1) * block;
                // SAFETY: loads and batch have parts of their own, and the arena outlives them.
                unsafe { source.submit(LoadTag(i as u64), offset, dst, 10 * BLOCK) }.unwrap();
            }
            // SAFETY: as above.
            unsafe { source.read_ranges(&reads) }.unwrap();
            while source.in_flight() > 0 {
                source.poll(true, &mut |_| {}).unwrap();
            }
        };
        let allocated = counted(|| (0..40).for_each(|_| round()));
        assert_eq!(allocated, Allocations::NONE, "{}", source.name());
    }
    let allocated = counted(|| verifier.verify(block, &arena[..400 * BLOCK]).unwrap());
    assert_eq!(allocated, Allocations::NONE);
}
