//! Where a program says itself that a job begins and ends: see `neap_job.h`.

use crate::agent;
use crate::export::export;

export! {
    /// Waits until the card is the program's own and all of its memory is there. 0, or an error of the driver.
    fn neap_job_begin() {
        agent::get().map_or(0, |agent| agent.job_begin())
    }

    /// Waits until the card has done the job's work, and gives the card back.
    fn neap_job_end() {
        agent::connected().map_or(0, |agent| agent.job_end())
    }
}
