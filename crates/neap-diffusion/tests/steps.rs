//! Every method's steps beside the published formulae in double precision: `scripts/diffusion_reference.py` prints the table.

use neap_diffusion::{Kind, Noise, Sampler, Settings};

type Case = (&'static str, &'static str, usize, [f64; 2], [f64; 4]);

/// Method, settings, steps; the first and the last trained step; four of the numbers at the end.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("ddim", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [831.0000, 1.0000], [-0.7336277, -0.2918413, -0.5203173, 0.1245149]),
    ("ddim", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [831.0000, 1.0000], [-0.2272590, -0.1099283, -0.1880516, -0.0115110]),
    ("euler", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [999.0000, 0.0000], [-0.6275079, -0.1917554, -0.4919905, 0.1667184]),
    ("euler", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [999.0000, 0.0000], [-0.1560519, -0.0805740, -0.1523399, -0.0322566]),
    ("euler-a", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [999.0000, 0.0000], [0.1423603, 0.1991410, -0.8018129, -0.6836718]),
    ("euler-a", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [999.0000, 0.0000], [-0.0134857, 0.0168197, -0.2911782, -0.2959024]),
    ("dpm++2m", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [999.0000, 166.0000], [-0.7317083, -0.2818818, -0.5287141, 0.1321548]),
    ("dpm++2m", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [999.0000, 166.0000], [-0.2560687, -0.1243504, -0.2057988, -0.0095049]),
    ("lcm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [999.0000, 179.0000], [-0.0758894, -0.0949921, -0.6416568, 0.1361640]),
    ("lcm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [999.0000, 179.0000], [-0.0626511, -0.1220587, -0.3127065, 0.3003471]),
    ("pndm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "epsilon"}"#, 6, [831.0000, 1.0000], [-0.8648711, -0.3698785, -0.5749597, 0.1321098]),
    ("pndm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "prediction_type": "v_prediction"}"#, 6, [831.0000, 1.0000], [-0.3110490, -0.1483045, -0.2315471, 0.0057155]),
    ("ddim", r#"{}"#, 5, [800.0000, 0.0000], [-0.6661428, -0.2332798, -0.6043327, 0.0646877]),
    ("ddim", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "timestep_spacing": "trailing", "clip_sample": true}"#, 7, [999.0000, 142.0000], [-0.7060615, -0.2456271, -0.5279974, 0.1717421]),
    ("ddim", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "timestep_spacing": "linspace"}"#, 4, [999.0000, 0.0000], [-0.8705836, -0.2589264, -0.5988359, 0.3280229]),
    ("euler", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "timestep_spacing": "leading", "steps_offset": 1}"#, 5, [801.0000, 1.0000], [-0.6944276, -0.2793917, -0.4976792, 0.1092125]),
    ("euler-a", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "timestep_spacing": "trailing"}"#, 5, [999.0000, 199.0000], [0.1607737, 0.2204721, -0.7878700, -0.7531469]),
    ("dpm++2m", r#"{"timestep_spacing": "leading", "steps_offset": 1}"#, 20, [941.0000, 48.0000], [-0.8627609, -0.3248186, -0.6888045, 0.1223633]),
    ("dpm++2m", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "timestep_spacing": "trailing"}"#, 5, [999.0000, 199.0000], [-0.7026833, -0.2691761, -0.5139729, 0.1250162]),
    ("pndm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}"#, 1, [0.0000, 0.0000], [-1.5255959, -0.6091889, -0.7773142, 0.4676355]),
    ("lcm", r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "original_inference_steps": 40}"#, 4, [999.0000, 249.0000], [0.1851587, 0.2490772, -0.2854649, -0.5460550]),
];

/// Any network does: this one gives a part of what it sees, and more of less noise.
fn network(input: &[f32], timestep: f64) -> Vec<f32> {
    let outputs = input
        .iter()
        .enumerate()
        .map(|(i, x)| (0.9 * f64::from(*x) + 0.2 * (i as f64 / 16.0) - timestep / 5000.0) as f32);
    outputs.collect()
}

fn walk(sampler: &Sampler) -> Vec<f32> {
    let mut sampler = sampler.clone();
    let mut noise = Noise::new(1);
    let scale = sampler.initial_scale() as f32;
    let mut latents: Vec<f32> = noise.draw(16).iter().map(|n| n * scale).collect();
    let mut input = latents.clone();
    for timestep in sampler.timesteps().to_vec() {
        sampler.input(&latents, &mut input);
        let output = network(&input, timestep);
        sampler.step(&output, &mut latents, &mut noise);
    }
    latents
}

#[test]
fn steps_are_the_formulae() {
    for (kind, settings, steps, ends, wanted) in CASES {
        let settings = Settings::read(settings).expect("right");
        let kind: Kind = kind.parse().expect("known");
        let sampler = Sampler::new(kind, &settings, *steps).expect("right");
        let timesteps = sampler.timesteps();
        let found = [timesteps[0], timesteps[timesteps.len() - 1]];
        assert!(
            found.iter().zip(ends).all(|(a, b)| (a - b).abs() < 1e-3),
            "{kind} {settings:?}: {timesteps:?}"
        );
        // Twice, as of several pictures.
        walk(&sampler);
        let latents = walk(&sampler);
        for (found, wanted) in [0, 5, 10, 15].iter().map(|&i| latents[i]).zip(wanted) {
            let apart = (f64::from(found) - wanted).abs();
            assert!(
                apart < 1e-5 * wanted.abs().max(1.0),
                "{kind} {settings:?}: {found} {wanted}"
            );
        }
    }
}

#[test]
fn a_strength_leaves_the_last_steps() {
    let settings = Settings::read(r#"{"_class_name": "EulerDiscreteScheduler"}"#).expect("right");
    let kind = settings.kind().expect("known");
    let whole = Sampler::new(kind, &settings, 10).expect("right");
    let part = Sampler::new(kind, &settings, 10).expect("right");
    let part = part.with_strength(0.35).expect("steps are left");
    assert_eq!(part.timesteps(), &whole.timesteps()[7..]);
    let mut latents = [1.0; 2];
    part.add_noise(&mut latents, &[1.0, 0.0]);
    assert!(latents[0] > 1.1 && latents[1] == 1.0, "{latents:?}");
    let none = Sampler::new(kind, &settings, 10).expect("right");
    assert!(none.with_strength(0.05).is_err());
}

#[test]
fn settings_that_are_not_followed_are_refused() {
    for wrong in [
        "",
        "[]",
        r#"{"use_karras_sigmas": true}"#,
        r#"{"beta_start": -1}"#,
        r#"{"beta_end": 1.5}"#,
        r#"{"num_train_timesteps": 0}"#,
        r#"{"beta_schedule": "squaredcos_cap_v2"}"#,
        r#"{"timestep_spacing": "any"}"#,
    ] {
        assert!(Settings::read(wrong).is_err(), "{wrong}");
    }
    let settings = Settings::read(r#"{"_class_name": "HeunDiscreteScheduler"}"#).expect("right");
    let told = settings.kind().unwrap_err().to_string();
    assert!(told.contains("HeunDiscreteScheduler"), "{told}");
    for (kind, steps) in [
        (Kind::Ddim, 0),
        (Kind::Lcm, 51),
        (Kind::DpmPlusPlus2M, 1000),
    ] {
        assert!(Sampler::new(kind, &settings, steps).is_err(), "{kind}");
    }
}
