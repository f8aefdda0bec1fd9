//! Packed files whose tables were forged, checksums and all: refused, or run without harm.

use crate::build::Random;
use crate::nets::RandomNet;
use crate::sessions::{ANY_GAIN, Packed};
use crate::toc::Toc;
use neap_ir::bands::{BandLayer, Bands};
use neap_ir::panel::ConvForm;
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, DType, Layout, Literal, NodeId, Op, PackedId, Program, ValueId};
use neap_store::{BLOCK, PackWriter, PackedFile};
use neaptide::{BandMode, Budget, Error, Model, RunOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const FORGERIES_PER_MODEL: u64 = 400;

/// Opens and runs, on zeros, with all the memory that a test may take.
fn open_and_run(path: &Path, bands: BandMode) -> Result<(), Error> {
    let options = RunOptions {
        budget: Budget::Bytes(1 << 30),
        threads: 2,
        bands,
        ..RunOptions::default()
    };
    let model = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})?;
    // As a search would.
    for program in std::iter::once(model.program()).chain(model.banded()) {
        if let Some(found) = neap_rewrite::with_less_memory(program, &ANY_GAIN) {
            found.check().expect("a checked program stays sound");
        }
    }
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let zeros = |infos: &[neaptide::TensorInfo]| -> Vec<Literal> {
        let zero = |i: &neaptide::TensorInfo| Literal::zeros(i.ty.dtype, &i.ty.shape);
        infos.iter().map(zero).collect()
    };
    let (inputs, mut outputs) = (zeros(session.inputs()), zeros(session.outputs()));
    let inputs: Vec<&[u8]> = inputs.iter().map(|i| i.bytes()).collect();
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(|o| o.bytes_mut()).collect();
    session.run(&inputs, &mut outputs)
}

struct Original {
    versions: [u8; 8],
    table: Vec<u8>,
    data: Vec<u8>,
}

impl Original {
    fn new(seed: u64) -> Original {
        let packed = Packed::new(RandomNet::new(seed).net.graph);
        let file = PackedFile::open(&packed.path).expect("opens");
        let (versions, table) = file.toc().split_first_chunk::<8>().expect("versions");
        let bytes = std::fs::read(&packed.path).expect("readable");
        let range = file.data_range();
        Original {
            versions: *versions,
            table: table.to_vec(),
            data: bytes[range.start as usize..range.end as usize].to_vec(),
        }
    }

    /// Writes a file whose checksums are all right.
    fn write(&self, table: &[u8], path: &Path) {
        let mut writer = PackWriter::create(path).expect("created");
        writer.append(&self.data).expect("written");
        writer.align(BLOCK as u64).expect("written");
        let toc = [&self.versions[..], table].concat();
        writer.finish(&toc).expect("written");
    }
}

#[test]
fn forged_tables_do_no_harm() {
    // In memory where possible: thousands of files are written and made durable.
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder");
    let (mut ran, mut refused, mut panics) = (0, 0, 0);
    for seed in 0..9 {
        let original = Original::new(seed);
        let path = folder.path().join("forged.neap");
        original.write(&original.table, &path);
        for bands in [BandMode::Off, BandMode::On] {
            open_and_run(&path, bands).unwrap_or_else(|e| panic!("seed {seed} as it was: {e}"));
        }
        let mut random = Random::new(seed + 5 + neap_testing::seed());
        for n in 0..FORGERIES_PER_MODEL {
            let table = if random.chance(40) {
                changed_bytes(&original.table, &mut random)
            } else {
                changed_fields(&original.table, &mut random)
            };
            original.write(&table, &path);
            let bands = *random.pick(&[BandMode::Off, BandMode::On]);
            match catch_unwind(AssertUnwindSafe(|| open_and_run(&path, bands))) {
                Ok(Ok(())) => ran += 1,
                Ok(Err(error)) => {
                    let text = error.to_string();
                    if text.contains("panicked") {
                        eprintln!("that was forgery {n} of seed {seed}: {text}");
                        panics += 1;
                    }
                    refused += 1;
                }
                Err(_) => {
                    eprintln!("that was forgery {n} of seed {seed}");
                    panics += 1;
                }
            }
        }
    }
    assert_eq!(panics, 0, "see above");
    assert!(ran > 100 && refused > 1000, "{ran} ran, {refused} refused");
}

/// Whoever reads the messages of many files reads one for each line.
#[test]
fn names_with_line_breaks_stay_on_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("forged.neap");
    let original = Original::new(0);
    let refused = |change: &dyn Fn(&mut Toc)| -> String {
        let mut toc = Toc::read(&original.table);
        for program in std::iter::once(&mut toc.plain).chain(&mut toc.banded) {
            let graph = &mut program.graph;
            graph
                .values
                .iter_mut()
                .for_each(|v| v.name.push_str(BREAKS));
            graph.nodes.iter_mut().for_each(|n| n.name.push_str(BREAKS));
            let weights = program.packed.iter_mut();
            weights.for_each(|p| p.name.push_str(BREAKS));
        }
        change(&mut toc);
        original.write(&toc.encode(), &path);
        let error = open_and_run(&path, BandMode::Off).expect_err("refused");
        error.to_string()
    };
    let outside = refused(&|toc| toc.plain.packed[0].offset = 1 << 40);
    let homeless = refused(&|toc| {
        let mut places = toc.plain.storage.iter_mut();
        let place = places.find(|s| matches!(s, Storage::Buffer { .. }));
        *place.expect("a value in a buffer") = Storage::Packed;
    });
    let without_operands = refused(&|toc| {
        let steps = &toc.plain.steps;
        toc.plain.graph.nodes[steps[0].index()].inputs.clear();
    });
    for (text, part) in [
        (outside, "lie outside the file"),
        (homeless, "is not packed"),
        (without_operands, "node '"),
    ] {
        assert!(
            text.contains(part) && text.contains("forged.neap"),
            "{text:?}"
        );
        assert!(!text.contains(char::is_control), "{text:?}");
        // The name is there all the same.
        assert!(
            text.contains("\\n") && text.contains("neap: ok"),
            "{text:?}"
        );
    }
}

const BREAKS: &str = "\nneap: ok\r\u{1b}[2K";

fn changed_bytes(table: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = table.to_vec();
    for _ in 0..=random.below(2) {
        let at = random.below(bytes.len());
        bytes[at] = match random.below(4) {
            0 => bytes[at] ^ (1 << random.below(8)),
            1 => bytes[at].wrapping_add(1),
            2 => [0, 1, 2, 3, 0x7f, 0x80][random.below(6)],
            _ => random.next() as u8,
        };
    }
    bytes
}

/// A length, offset or index somewhat or very wrong.
fn twisted(x: u64, random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => x.wrapping_add(1),
        2 => x.wrapping_sub(1),
        3 => x.wrapping_mul(2),
        4 => x / 2,
        5 => u64::MAX,
        6 => 1 << random.below(63),
        _ => x.wrapping_add(4096),
    }
}

fn changed_fields(table: &[u8], random: &mut Random) -> Vec<u8> {
    let mut toc = Toc::read(table);
    let is_banded = toc.banded.is_some() && random.chance(50);
    let program = match &mut toc.banded {
        Some(banded) if is_banded => banded,
        _ => &mut toc.plain,
    };
    for _ in 0..=random.below(2) {
        match random.below(8) {
            _ if is_banded && random.chance(50) => change_bands(program, random),
            0 | 1 => change_value(program, random),
            2 => change_storage(program, random),
            3 => change_buffer(program, random),
            4 => change_packed(program, random),
            5 | 6 => change_node(program, random),
            _ => change_lists(program, random),
        }
    }
    toc.encode()
}

fn change_bands(program: &mut Program, random: &mut Random) {
    let nodes = program.graph.nodes.iter_mut();
    let mut chains: Vec<&mut Bands> = nodes
        .filter_map(|node| match &mut node.op {
            Op::Bands(bands) => Some(bands),
            _ => None,
        })
        .collect();
    if chains.is_empty() {
        return;
    }
    let at = random.below(chains.len());
    let bands = &mut *chains[at];
    match random.below(4) {
        0 => bands.first_rows = twisted(bands.first_rows as u64, random) as usize,
        1 => bands.band_rows = twisted(bands.band_rows as u64, random) as usize,
        _ if bands.layers.is_empty() => {}
        2 => {
            let at = random.below(bands.layers.len());
            let layer = bands.layers[at].clone();
            match random.below(3) {
                0 => bands.layers.extend(vec![layer; 1 + random.below(20)]),
                1 => bands.layers.insert(0, layer),
                _ => drop(bands.layers.remove(at)),
            }
        }
        _ => {
            let at = random.below(bands.layers.len());
            change_layer(&mut bands.layers[at], random);
        }
    }
}

fn change_layer(layer: &mut BandLayer, random: &mut Random) {
    let change = |size: &mut usize, random: &mut Random| {
        *size = twisted(*size as u64, random) as usize;
    };
    let window = match layer {
        BandLayer::Conv(conv) => {
            match random.below(8) {
                0 => return change(&mut conv.c_in, random),
                1 => return change(&mut conv.c_out, random),
                2 => return change(&mut conv.groups, random),
                3 => return conv.epilogue.residual ^= true,
                4 => {
                    conv.form = *random.pick(&[
                        ConvForm::Blocked,
                        ConvForm::FirstLayer,
                        ConvForm::NarrowGroups,
                    ]);
                    return;
                }
                _ => {}
            }
            &mut conv.window
        }
        BandLayer::Depthwise(depthwise) => {
            if random.chance(30) {
                return change(&mut depthwise.channels, random);
            }
            &mut depthwise.window
        }
        BandLayer::Pool {
            window,
            output_spatial,
            ..
        } => {
            if random.chance(30) && !output_spatial.is_empty() {
                let at = random.below(output_spatial.len());
                return change(&mut output_spatial[at], random);
            }
            window
        }
    };
    let sizes = match random.below(5) {
        0 => &mut window.kernel,
        1 => &mut window.strides,
        2 => &mut window.dilations,
        3 => &mut window.pads_begin,
        _ => &mut window.pads_end,
    };
    if random.chance(10) {
        sizes.pop();
    }
    if !sizes.is_empty() {
        let at = random.below(sizes.len());
        change(&mut sizes[at], random);
    }
}

fn change_value(program: &mut Program, random: &mut Random) {
    let at = random.below(program.graph.values.len());
    let value = &mut program.graph.values[at];
    match random.below(5) {
        0 => {
            value.layout = match value.layout {
                Layout::Plain => Layout::Blocked,
                Layout::Blocked => Layout::Plain,
            };
        }
        1 => value.ty.dtype = *random.pick(&[DType::F32, DType::F64, DType::I64, DType::Bool]),
        2 => value.ty.shape.push(random.below(3)),
        _ => {
            if !value.ty.shape.is_empty() {
                let axis = random.below(value.ty.shape.len());
                let d = value.ty.shape[axis] as u64;
                value.ty.shape[axis] = twisted(d, random) as usize;
            }
        }
    }
}

fn change_storage(program: &mut Program, random: &mut Random) {
    let at = random.below(program.storage.len());
    let other = *random.pick(&program.storage);
    let buffers = program.buffers.len().max(1);
    program.storage[at] = match (program.storage[at], random.below(3)) {
        (
            Storage::Buffer {
                buffer,
                offset_bytes,
            },
            0,
        ) => Storage::Buffer {
            buffer,
            offset_bytes: twisted(offset_bytes, random),
        },
        (Storage::Buffer { offset_bytes, .. }, 1) => Storage::Buffer {
            buffer: random.below(buffers) as u32,
            offset_bytes,
        },
        _ => other,
    };
}

fn change_buffer(program: &mut Program, random: &mut Random) {
    if program.buffers.is_empty() {
        return;
    }
    let at = random.below(program.buffers.len());
    let buffer = &mut program.buffers[at];
    match random.below(3) {
        0 => buffer.bytes = twisted(buffer.bytes, random),
        1 => buffer.live.start = twisted(buffer.live.start.into(), random) as u32,
        _ => buffer.live.end = twisted(buffer.live.end.into(), random) as u32,
    }
}

fn change_packed(program: &mut Program, random: &mut Random) {
    if program.packed.is_empty() {
        return;
    }
    let at = random.below(program.packed.len());
    let packed = &mut program.packed[at];
    match (random.below(4), &mut packed.form) {
        (0, _) => packed.offset = twisted(packed.offset, random),
        (1, _) => packed.bytes = twisted(packed.bytes, random),
        (2, PackedForm::Panels { panels, .. }) => {
            *panels = twisted(u64::from(*panels), random) as u32;
        }
        (3, PackedForm::Panels { panel_bytes, .. }) => {
            *panel_bytes = twisted(*panel_bytes, random);
        }
        (_, form) => *form = PackedForm::Raw,
    }
}

fn change_node(program: &mut Program, random: &mut Random) {
    let at = random.below(program.graph.nodes.len());
    let values = program.graph.values.len();
    let op = program.graph.nodes[random.below(program.graph.nodes.len())]
        .op
        .clone();
    let node = &mut program.graph.nodes[at];
    let some_value = Some(ValueId(random.below(values) as u32));
    match random.below(7) {
        0 => node.op = op,
        1 => {
            node.inputs.pop();
        }
        2 => node.inputs.push(some_value),
        3 if !node.inputs.is_empty() => {
            let i = random.below(node.inputs.len());
            node.inputs[i] = if random.chance(30) { None } else { some_value };
        }
        4 => {
            node.outputs.pop();
        }
        5 if !node.outputs.is_empty() => {
            let i = random.below(node.outputs.len());
            node.outputs[i] = if random.chance(30) { None } else { some_value };
        }
        _ => {
            let id = PackedId(random.below(program.packed.len() + 1) as u32);
            node.panels = if random.chance(30) { None } else { Some(id) };
        }
    }
}

fn change_lists(program: &mut Program, random: &mut Random) {
    let values = program.graph.values.len();
    let nodes = program.graph.nodes.len();
    match random.below(7) {
        0 => {
            program.steps.pop();
        }
        1 => program.steps.push(NodeId(random.below(nodes + 1) as u32)),
        2 if !program.steps.is_empty() => {
            program.steps.remove(random.below(program.steps.len()));
        }
        3 => program
            .graph
            .outputs
            .push(ValueId(random.below(values + 1) as u32)),
        4 => program
            .graph
            .inputs
            .push(ValueId(random.below(values + 1) as u32)),
        5 if !program.graph.consts.is_empty() => {
            let at = random.below(program.graph.consts.len());
            program.graph.consts[at] =
                Const::Packed(PackedId(random.below(program.packed.len() + 1) as u32));
        }
        _ => program.digest.push('x'),
    }
}
