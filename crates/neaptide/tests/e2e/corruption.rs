//! Damaged packed files: every byte matters, and no damage goes unnoticed.

use crate::nets::RandomNet;
use crate::sessions::Packed;
use neaptide::{Budget, Error, Model, RunOptions};
use std::path::Path;

/// Opens and runs a packed file as a user would.
fn open_and_run(path: &Path, inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
    let options = RunOptions {
        budget: Budget::Unlimited,
        threads: 1,
        ..RunOptions::default()
    };
    let model = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})?;
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let sizes = session.outputs().iter().map(|o| o.len_bytes());
    let mut outputs: Vec<Vec<u8>> = sizes.map(|n| vec![0u8; n]).collect();
    let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
    session.run(&inputs, &mut places)?;
    Ok(outputs)
}

/// A small packed model with all kinds of weights.
fn small(seed: u64) -> (Packed, Vec<Vec<u8>>, Vec<u8>) {
    let mut net = RandomNet::new(seed);
    let packed = Packed::new(net.net.graph.clone());
    let inputs = net.inputs().iter().map(|l| l.bytes().to_vec()).collect();
    let file = std::fs::read(&packed.path).expect("readable");
    (packed, inputs, file)
}

#[test]
fn any_changed_byte_is_detected() {
    for seed in [0, 1, 6] {
        let (packed, inputs, file) = small(seed);
        let expected = open_and_run(&packed.path, &inputs).expect("runs undamaged");
        let damaged = packed.path.with_file_name("damaged.neap");
        // A stride that meets every part of a block, and everything in the first and last ones.
        let stride = (file.len() / 700).max(1) | 1;
        let ends = (0..200).chain(file.len() - 200..file.len());
        for at in (0..file.len()).step_by(stride).chain(ends) {
            let mut bytes = file.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&damaged, &bytes).expect("written");
            match open_and_run(&damaged, &inputs) {
                Err(Error::BadInput(_) | Error::Machine(_)) => {}
                Err(other) => panic!("byte {at}: {other}"),
                // Only what no run reads may differ, and then the whole check finds it.
                Ok(found) => {
                    assert!(found == expected, "byte {at}: wrong results");
                    let model = Model::open(
                        &damaged,
                        &neaptide::OpenOptions::of_own_process(),
                        &mut |_| {},
                    );
                    let verified = model.and_then(|m| m.verify());
                    assert!(verified.is_err(), "byte {at} is not noticed");
                }
            }
        }
    }
}

#[test]
fn shortened_and_lengthened_files_do_not_open() {
    let (packed, inputs, file) = small(0);
    let damaged = packed.path.with_file_name("damaged.neap");
    let mut lengths: Vec<usize> = (0..file.len()).step_by(4093).collect();
    lengths.extend([1, 7, 8, 79, 4095, 4096, file.len() - 1]);
    for len in lengths {
        std::fs::write(&damaged, &file[..len]).expect("written");
        let error = open_and_run(&damaged, &inputs).expect_err("too short");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let mut longer = file;
    longer.push(0);
    std::fs::write(&damaged, &longer).expect("written");
    assert!(open_and_run(&damaged, &inputs).is_err());
}
