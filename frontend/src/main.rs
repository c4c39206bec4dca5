//! The `carousel` binary; what it does is in the library.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    carousel_frontend::cli::main(std::env::args_os())
}
