//! Contexts that end, and all allocations with them.

use crate::card::Context;
use crate::export::export;
use crate::real::{Status, driver};
use crate::{agent, memory};
use std::ffi::{c_int, c_uint};

/// Forgets what was allocated if the card's own context is gone.
fn ended(device: c_int, status: Status) -> Status {
    if agent::connected().is_some() && status == 0 {
        let (mut flags, mut active): (c_uint, c_int) = (0, 0);
        let asked = driver!(cuDevicePrimaryCtxGetState(
            device => c_int, &raw mut flags => *mut c_uint, &raw mut active => *mut c_int
        ));
        if asked == 0 && active == 0 {
            memory::get().clear();
        }
    }
    status
}

export! {
    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        ended(device, driver!(cuDevicePrimaryCtxReset_v2(device => c_int)))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        ended(device, driver!(cuDevicePrimaryCtxRelease_v2(device => c_int)))
    }

    fn cuCtxDestroy_v2(context: Context) {
        if agent::connected().is_some() && memory::get().is_in(context) {
            memory::wait_for_card();
            memory::get().clear();
        }
        driver!(cuCtxDestroy_v2(context => Context))
    }
}
