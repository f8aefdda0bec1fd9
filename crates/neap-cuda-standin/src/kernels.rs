//! The kernels that the stand-in knows, by name. They compute on the host, over memory that must be mapped.

use crate::space::using;
use crate::streams::Work;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kernel {
    /// `fill_u64(out, count, seed)`: out[i] = mix(seed + i)
    Fill = 1,
    /// `step_u64(values, count)`: values[i] = mix(values[i])
    Step,
    /// `add_f32(a, b, out, count)`
    Add,
    /// `spin_ms(milliseconds)`
    Spin,
    /// `slow_step_u64(values, count, milliseconds)`: as `step_u64`, and holds the memory for so long
    SlowStep,
}

pub fn by_name(name: &str) -> Option<Kernel> {
    Some(match name {
        "fill_u64" => Kernel::Fill,
        "step_u64" => Kernel::Step,
        "add_f32" => Kernel::Add,
        "spin_ms" => Kernel::Spin,
        "slow_step_u64" => Kernel::SlowStep,
        _ => return None,
    })
}

pub fn by_handle(handle: usize) -> Option<Kernel> {
    let all = [
        Kernel::Fill,
        Kernel::Step,
        Kernel::Add,
        Kernel::Spin,
        Kernel::SlowStep,
    ];
    all.into_iter().find(|&k| k as usize == handle)
}

/// The generator whose steps tests repeat.
fn mix(x: u64) -> u64 {
    x.wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407)
}

/// A launch with its arguments, which are read now.
///
/// # Safety
/// `parameters` points to as many pointers to arguments as the kernel takes, each of eight bytes.
pub unsafe fn launch(kernel: Kernel, parameters: *const *const c_void) -> Work {
    let number = |i: usize| {
        // SAFETY: the caller says that the kernel's arguments are there.
        unsafe { (*parameters.add(i)).cast::<u64>().read_unaligned() }
    };
    match kernel {
        Kernel::Fill => {
            let (out, count, seed) = (number(0), number(1), number(2));
            Arc::new(move || change(out, count, |i, _| mix(seed.wrapping_add(i))))
        }
        Kernel::Step => {
            let (values, count) = (number(0), number(1));
            Arc::new(move || change(values, count, |_, old| mix(old)))
        }
        Kernel::SlowStep => {
            let (values, count, ms) = (number(0), number(1), number(2));
            Arc::new(move || {
                using("slow_step_u64", &[(values, count * 8)], || {
                    std::thread::sleep(Duration::from_millis(ms));
                });
                change(values, count, |_, old| mix(old));
            })
        }
        Kernel::Add => {
            let (a, b, out, count) = (number(0), number(1), number(2), number(3));
            let ranges = [a, b, out].map(|at| (at, count * 4));
            Arc::new(move || {
                using("add_f32", &ranges, || {
                    for i in 0..count as usize {
                        // SAFETY: the ranges are mapped while this runs.
                        unsafe {
                            let sum = *(a as *const f32).add(i) + *(b as *const f32).add(i);
                            (out as *mut f32).add(i).write(sum);
                        }
                    }
                });
            })
        }
        Kernel::Spin => {
            let ms = number(0);
            Arc::new(move || std::thread::sleep(Duration::from_millis(ms)))
        }
    }
}

fn change(at: u64, count: u64, new: impl Fn(u64, u64) -> u64) {
    using("a kernel", &[(at, count * 8)], || {
        for i in 0..count {
            let place = (at + 8 * i) as *mut u64;
            // SAFETY: the range is mapped while this runs.
            unsafe { place.write(new(i, place.read())) };
        }
    });
}
