//! The count takes in the threads of the work, and not the harness's own.

use neap_testing::{Allocations, Counting, counted};
use std::hint::black_box;
use std::sync::mpsc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn threads_of_the_work_are_counted() {
    assert_eq!(counted(|| ()), Allocations::NONE);
    let here = counted(|| drop(black_box(Box::new(1))));
    assert_eq!((here.taken, here.released), (1, 1));
    let (go, gone) = mpsc::sync_channel::<()>(0);
    let (done, finished) = mpsc::sync_channel::<()>(1);
    let thread = std::thread::spawn(move || {
        gone.recv().unwrap();
        black_box(vec![0u8; 10]);
        done.send(()).unwrap();
    });
    let there = counted(|| {
        go.send(()).unwrap();
        finished.recv().unwrap();
    });
    thread.join().unwrap();
    assert!(there.taken >= 1, "{there:?}");
}
