//! The `neap` command: runs neural networks inside an enforced memory budget.

use std::process::ExitCode;

fn main() -> ExitCode {
    neap_cli::run()
}
