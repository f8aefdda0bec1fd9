//! Results of the driver.

pub type Status = i32;

pub const SUCCESS: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const INVALID_CONTEXT: Status = 201;
pub const NOT_FOUND: Status = 500;
pub const NOT_SUPPORTED: Status = 801;
pub const NOT_READY: Status = 600;

pub fn of<T>(result: Result<T, Status>) -> Status {
    result.err().unwrap_or(SUCCESS)
}
