//! The written files, read back with a small independent protobuf walker.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use neap_zoo::{Batch, Options, list, write};

/// One field of a message: its number and its payload (empty for numbers).
struct Field<'a> {
    number: u64,
    bytes: &'a [u8],
    value: u64,
}

fn varint(data: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = data[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn fields(data: &[u8]) -> Vec<Field<'_>> {
    let mut at = 0;
    let mut result = Vec::new();
    while at < data.len() {
        let key = varint(data, &mut at);
        let (mut bytes, mut value): (&[u8], u64) = (&[], 0);
        match key & 7 {
            0 => value = varint(data, &mut at),
            2 => {
                let len = varint(data, &mut at) as usize;
                bytes = &data[at..at + len];
                at += len;
            }
            5 => at += 4,
            kind => panic!("wire type {kind} at {at}"),
        }
        result.push(Field {
            number: key >> 3,
            bytes,
            value,
        });
    }
    result
}

fn child(data: &[u8], number: u64) -> &[u8] {
    let all = fields(data);
    let mut found = all.iter().filter(|f| f.number == number);
    let first = found.next().expect("the field is there").bytes;
    assert!(found.next().is_none(), "field {number} twice");
    first
}

/// Values of all initializers by name, wherever they are kept, checked against their shapes.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = fs::read(path).unwrap();
    let mut result = BTreeMap::new();
    for field in fields(child(&file, 7)).iter().filter(|f| f.number == 5) {
        let tensor = fields(field.bytes);
        let number = |n: u64| tensor.iter().filter(move |f| f.number == n);
        let dims: Vec<u64> = number(1).map(|f| f.value).collect();
        let width = match number(2).next().unwrap().value {
            1 => 4,
            7 => 8,
            9 => 1,
            other => panic!("type {other}"),
        };
        let external: BTreeMap<&[u8], &str> = number(13)
            .map(|f| {
                (
                    child(f.bytes, 1),
                    str::from_utf8(child(f.bytes, 2)).unwrap(),
                )
            })
            .collect();
        let values = if external.is_empty() {
            number(9).next().unwrap().bytes.to_vec()
        } else {
            let data = fs::read(path.with_file_name(external[&b"location"[..]])).unwrap();
            let offset: usize = external[&b"offset"[..]].parse().unwrap();
            let length: usize = external[&b"length"[..]].parse().unwrap();
            assert_eq!(offset % 4096, 0);
            data[offset..offset + length].to_vec()
        };
        assert_eq!(values.len() as u64, dims.iter().product::<u64>() * width);
        let name = String::from_utf8(number(8).next().unwrap().bytes.to_vec()).unwrap();
        assert!(result.insert(name, values).is_none());
    }
    result
}

fn options(seed: u64) -> Options {
    Options {
        seed,
        ..Options::default()
    }
}

#[test]
fn inline_and_external_hold_the_same_values() {
    let dir = tempfile::tempdir().unwrap();
    let inline = dir.path().join("inline.onnx");
    let external = dir.path().join("external.onnx");
    let mut reports = Vec::new();
    let written = write("squeezenet1_1", &inline, &options(0), &mut |d, t| {
        reports.push((d, t))
    })
    .unwrap();
    assert_eq!(written.model_bytes, fs::metadata(&inline).unwrap().len());
    assert!(reports.is_sorted());
    assert_eq!(
        reports.last(),
        Some(&(written.model_bytes, written.model_bytes))
    );

    let outside = Options {
        external_data: true,
        ..options(0)
    };
    let written = write("squeezenet1_1", &external, &outside, &mut |_, _| {}).unwrap();
    let (data_path, data_bytes) = written.external.unwrap();
    assert_eq!(data_bytes, fs::metadata(&data_path).unwrap().len());
    assert!(fs::metadata(&external).unwrap().len() < 100_000);

    let values = tensors(&inline);
    assert_eq!(values, tensors(&external));
    assert_eq!(
        values.values().map(Vec::len).sum::<usize>() as u64,
        written.weight_bytes
    );
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        3,
        "no temporary file is left"
    );
}

#[test]
fn bytes_follow_from_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |file: &str, seed: u64| {
        let path = dir.path().join(file);
        write("mobilenet_v2", &path, &options(seed), &mut |_, _| {}).unwrap();
        fs::read(path).unwrap()
    };
    let first = bytes("a.onnx", 7);
    assert!(first == bytes("b.onnx", 7));
    assert!(first != bytes("c.onnx", 8));
    // Pinned: plans, packed files and measurements elsewhere are named by such files' digests,
    // and every machine must make the same one.
    let hash = first.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    assert_eq!(hash, 0xd068_ecd4_f560_4a43, "{hash:#x}");
}

#[test]
fn dynamic_batch_names_its_dimension() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    let dynamic = Options {
        batch: Batch::Dynamic,
        ..options(0)
    };
    write("squeezenet1_1", &path, &dynamic, &mut |_, _| {}).unwrap();
    let file = fs::read(&path).unwrap();
    let graph = child(&file, 7);
    for port in [child(graph, 11), child(graph, 12)] {
        let shape = child(child(child(port, 2), 1), 2);
        let first = fields(shape)[0].bytes;
        assert_eq!(child(first, 2), b"batch");
    }
}

#[test]
fn a_failed_write_leaves_an_earlier_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("kept"), "x").unwrap();
    assert!(write("squeezenet1_1", &path, &options(0), &mut |_, _| {}).is_err());
    assert!(path.join("kept").exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_entry_states_its_input() {
    for entry in list() {
        assert_eq!(entry.input_shape[0], 1, "{}", entry.name);
        assert!(!entry.summary.is_empty());
    }
}

/// Shapes alone: the data file has its size and takes no space, the model everything else.
#[test]
fn shapes_take_no_space() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let (whole, bare) = (dir.path().join("whole.onnx"), dir.path().join("bare.onnx"));
    let options = |shapes_only| Options {
        external_data: true,
        shapes_only,
        ..Options::default()
    };
    let mut quiet = |_, _| {};
    write("squeezenet1_1", &whole, &options(false), &mut quiet).unwrap();
    let written = write("squeezenet1_1", &bare, &options(true), &mut quiet).unwrap();
    let (data, bytes) = written.external.unwrap();
    let metadata = fs::metadata(&data).unwrap();
    assert_eq!(metadata.len(), bytes);
    assert!(
        metadata.blocks() * 512 < bytes / 100,
        "{}",
        metadata.blocks()
    );
    let (whole, bare) = (tensors(&whole), tensors(&bare));
    assert!(whole.keys().eq(bare.keys()));
    for (name, values) in &bare {
        assert_eq!(values.len(), whole[name].len(), "{name}");
        let large = values.len() >= 1024;
        assert!(
            *values == whole[name] || large && values.iter().all(|&b| b == 0),
            "{name}"
        );
    }
}

#[test]
fn networks_for_planning_come_without_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.onnx");
    let mut quiet = |_, _| {};
    let error = write("wide_resnet152_w10", &path, &Options::default(), &mut quiet).unwrap_err();
    assert!(error.to_string().contains("shapes only"), "{error}");
    let options = Options {
        shapes_only: true,
        ..Options::default()
    };
    let written = write("wide_resnet152_w10", &path, &options, &mut quiet).unwrap();
    assert!(written.weight_bytes > 20 << 30);
    assert!(written.model_bytes < 1 << 20);
}
