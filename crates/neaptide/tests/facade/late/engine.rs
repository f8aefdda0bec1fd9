//! Outputs whose sizes the data decide, of models in one engine.

use super::{bytes, filter, open};
use crate::onnx::{self, FLOAT};
use neaptide::{Budget, Engine, EngineOptions, LoadOptions, RunOptions};

#[test]
fn an_engine_tells_what_each_output_was() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
    let fixed = onnx::Model::new(13)
        .input("x", FLOAT, &[6, 2])
        .node("Relu", &["x"], &["y"], &[])
        .output("y");
    let models = [filter(), fixed];
    let opened = || {
        let pairs = models.iter().zip(&folders);
        pairs.map(|(model, folder)| open(model, folder.path(), &[]).expect("opens"))
    };
    let engine = |budget| {
        let options = EngineOptions {
            run: RunOptions {
                budget,
                threads: 2,
                ..EngineOptions::default().run
            },
            // What others left in shared memory is no result.
            overwrite: Some(0x3f),
            ..EngineOptions::default()
        };
        Engine::new(options).expect("begins")
    };
    for budget in [Budget::Unlimited, Budget::Engine(16 << 20)] {
        let engine = engine(budget);
        let loaded = opened().zip(["filter", "fixed"]).map(|(model, name)| {
            let loaded = engine.load_opened(name, model, &LoadOptions::default());
            loaded.unwrap_or_else(|e| panic!("{e}"))
        });
        let loaded: Vec<_> = loaded.collect();
        for kept in [2, 6, 1] {
            let mut x = [[-1.0f32, 3.0]; 6];
            x[..kept].fill([1.0, 2.0]);
            let x = bytes(x.as_flattened());
            for model in &loaded {
                let infos = model.outputs();
                let mut places: Vec<Vec<u8>> =
                    infos.iter().map(|o| vec![0xa5; o.len_bytes()]).collect();
                let mut slots: Vec<&mut [u8]> = places.iter_mut().map(Vec::as_mut_slice).collect();
                let report = engine.run(model, &[&x], &mut slots).expect("runs");
                if model.name() == "fixed" {
                    assert!(report.outputs.is_empty());
                    continue;
                }
                let shapes: Vec<&[usize]> = report.outputs.iter().map(|ty| &ty.shape[..]).collect();
                let expected: [&[usize]; 7] = [
                    &[kept],
                    &[kept, 2],
                    &[kept],
                    &[kept, 3],
                    &[1],
                    &[kept, 2, 1],
                    &[1, 2],
                ];
                assert_eq!(shapes, expected);
                let (own, rest) = places[1].split_at(report.outputs[1].len_bytes());
                assert_eq!(own, bytes(&[2.0f32, 4.0].repeat(kept)));
                assert!(rest.iter().all(|&byte| byte == 0xa5));
            }
        }
    }
}
