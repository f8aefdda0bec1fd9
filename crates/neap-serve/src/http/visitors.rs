//! Whether a request means this server, and comes from somebody who may ask.
//!
//! A browser asks for whatever page it shows, also of another site, and with names that another site gave to this machine. So
//! a server without a token would be anybody's.
//!
//! Sources: Fetch, "Origin header" and "CORS protocol"; W3C "Fetch Metadata".

use crate::options::Welcome;
use crate::refusal::{Refusal, Why};
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::Response;
use std::net::IpAddr;

/// Whom the client asks. `None` for HTTP/1.0, where it need not say.
pub fn host_of(request: &Request) -> Result<Option<Authority>, Refusal> {
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let mut hosts = request.headers().get_all(header::HOST).into_iter();
    let wrong =
        || Refusal::malformed("a request has one Host header, with a name and perhaps a port");
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() <= Version::HTTP_10 => Ok(None),
        (Some(host), None) => {
            let host = host.to_str().ok().and_then(|host| host.parse().ok());
            host.map(Some).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// A name that another site gave to this machine is none of ours.
pub fn check_host(
    welcome: &Welcome,
    host: Option<&Authority>,
    is_near: bool,
) -> Result<(), Refusal> {
    let Some(host) = host.map(Authority::host) else {
        return Ok(());
    };
    let is_limited = is_near || !welcome.hosts.is_empty();
    if !is_limited || is_own_name(host) || is_listed(&welcome.hosts, host) {
        return Ok(());
    }
    let host = crate::catalogue::shown(host);
    let message =
        format!("this server is not {host}: start it with --allow-host to say that it is");
    Err(Refusal::new(Why::Foreign, message))
}

/// Addresses, and names that mean this machine wherever they are asked for.
fn is_own_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.to_ascii_lowercase();
    bare.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

fn is_listed(list: &[String], name: &str) -> bool {
    (list.iter()).any(|listed| listed == "*" || listed.eq_ignore_ascii_case(name))
}

/// The origin of a page of another site, where it may ask; `None` where no page of another site asks.
pub fn foreign_origin(
    welcome: &Welcome,
    request: &Request,
    host: Option<&Authority>,
) -> Result<Option<HeaderValue>, Refusal> {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let refused = |who: &str| {
        let who = crate::catalogue::shown(who);
        let message = format!(
            "pages of {who} may not ask here: start the server with --allow-origin to let them"
        );
        Err(Refusal::new(Why::Foreign, message))
    };
    if let Some(value) = headers.get(header::ORIGIN) {
        let origin = value.to_str().unwrap_or("");
        let its_host = origin
            .parse::<Uri>()
            .ok()
            .and_then(|uri| uri.into_parts().authority);
        let is_same =
            its_host.is_some_and(|its| host.is_some_and(|host| is_same_place(&its, host)));
        return match is_same {
            true => Ok(None),
            false if is_listed(&welcome.origins, origin) => Ok(Some(value.clone())),
            false => refused(origin),
        };
    }
    // What browsers say where there is no origin: of pictures, scripts, links.
    let is_link = text("sec-fetch-mode") == Some("navigate") && request.method() == Method::GET;
    match text("sec-fetch-site") {
        Some("cross-site" | "same-site") if !is_link => refused("another site"),
        _ => Ok(None),
    }
}

fn is_same_place(a: &Authority, b: &Authority) -> bool {
    a.host().eq_ignore_ascii_case(b.host()) && a.port_u16() == b.port_u16()
}

/// A browser asks whether a page may ask.
pub fn is_question(request: &Request) -> bool {
    let asked = header::ACCESS_CONTROL_REQUEST_METHOD;
    request.method() == Method::OPTIONS && request.headers().contains_key(asked)
}

/// It may: whatever it wants to send.
pub fn may_ask(headers: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let told = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST");
    told.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if headers.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        told.insert(name, HeaderValue::from_static("true"));
    }
    told.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("600"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            let name = HeaderName::from_static(name);
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request
    }

    fn welcome(hosts: &[&str], origins: &[&str]) -> Welcome {
        let all = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        Welcome {
            hosts: all(hosts),
            origins: all(origins),
        }
    }

    /// Whether it is let in: `Some` with the foreign origin that may read the answer.
    fn asked(welcome: &Welcome, is_near: bool, headers: &[(&'static str, &str)]) -> Option<bool> {
        let request = request(headers);
        let host = host_of(&request).ok()?;
        check_host(welcome, host.as_ref(), is_near).ok()?;
        let origin = foreign_origin(welcome, &request, host.as_ref()).ok()?;
        Some(origin.is_some())
    }

    #[test]
    fn names_that_others_gave_to_this_machine_are_refused() {
        let nobody = welcome(&[], &[]);
        for own in [
            "localhost",
            "LocalHost:8000",
            "a.localhost",
            "127.0.0.1:80",
            "[::1]:8000",
            "10.0.0.7",
        ] {
            assert_eq!(asked(&nobody, true, &[("host", own)]), Some(false), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x",
        ] {
            assert_eq!(asked(&nobody, true, &[("host", other)]), None, "{other}");
            // Who listens for other machines has names that nobody here knows.
            assert_eq!(asked(&nobody, false, &[("host", other)]), Some(false));
            assert_eq!(
                asked(&welcome(&["*"], &[]), true, &[("host", other)]),
                Some(false)
            );
        }
        let listed = welcome(&["models.example"], &[]);
        for is_near in [true, false] {
            assert!(asked(&listed, is_near, &[("host", "models.example:8000")]).is_some());
            assert!(asked(&listed, is_near, &[("host", "evil.example")]).is_none());
        }
        for wrong in [&[][..], &[("host", "a"), ("host", "b")], &[("host", "a b")]] {
            assert!(host_of(&request(wrong)).is_err());
        }
    }

    #[test]
    fn pages_of_other_sites_ask_only_where_they_are_welcome() {
        let nobody = welcome(&[], &[]);
        let host = ("host", "127.0.0.1:8000");
        let asked = |welcome: &Welcome, more: &[(&'static str, &str)]| {
            asked(welcome, true, &[&[host], more].concat())
        };
        for own in [
            &[][..],
            &[("origin", "http://127.0.0.1:8000")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(asked(&nobody, own), Some(false), "{own:?}");
        }
        for foreign in [
            &[("origin", "http://127.0.0.1:19999")][..],
            &[("origin", "http://127.0.0.1")],
            &[("origin", "https://evil.example")],
            &[("origin", "null")],
            &[("origin", "")],
            &[("sec-fetch-site", "cross-site")],
            &[
                ("sec-fetch-site", "same-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
        ] {
            assert_eq!(asked(&nobody, foreign), None, "{foreign:?}");
        }
        // A link to the page at `/`.
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
        ];
        assert_eq!(asked(&nobody, &link), Some(false));
        let page = ("origin", "https://page.example");
        assert_eq!(
            asked(&welcome(&[], &["https://page.example"]), &[page, link[0]]),
            Some(true)
        );
        assert_eq!(asked(&welcome(&[], &["*"]), &[page]), Some(true));
        assert_eq!(
            asked(&welcome(&[], &["https://other.example"]), &[page]),
            None
        );
    }
}
