"""Kinds of failure that Python exceptions prove, by type, by message, or both. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.failure.error_patterns import match_error_kind
from mcp_server.text.regex import compile_lazily

# Types that decide whatever their message ...
_SURE_TYPES = {
    "import_error": "ImportError ModuleNotFoundError DistributionNotFound VersionConflict PackageNotFoundError",
    "data_error": """
        NotADirectoryError IsADirectoryError UnidentifiedImageError BadZipFile UnpicklingError DataLossError
    """,
    "python_error": """
        NameError UnboundLocalError SyntaxError IndentationError TabError ZeroDivisionError IndexError
        RecursionError NotImplementedError PicklingError StopIteration
    """,
    "oom_host": "MemoryError _ArrayMemoryError ArrowMemoryError",
    "killed": "KeyboardInterrupt SignalException SIGTERMException UncompletedJobError",
    "auth_error": "GatedRepoError",
    "network_error": "ProxyError",
}
# ... and types that decide only when no error pattern matches the message.
_TYPES = {
    "network_error": """
        ConnectionError ConnectTimeout ReadTimeout ConnectTimeoutError ReadTimeoutError MaxRetryError
        ProxyError SSLError SSLCertVerificationError URLError gaierror ConnectionRefusedError
        ConnectionResetError ConnectionAbortedError RemoteDisconnected IncompleteRead ChunkedEncodingError
        ProtocolError ClientConnectorError ServerDisconnectedError EndpointConnectionError
        APIConnectionError APITimeoutError RateLimitError InternalServerError HfHubHTTPError HTTPError
        LocalEntryNotFoundError OfflineModeIsEnabled CommError _InactiveRpcError RetryError
        ContentTooShortError ConnectError PoolTimeout ClientPayloadError FSTimeoutError ClientOSError
        DistNetworkError NewConnectionError LocalProtocolError RemoteProtocolError WriteError
    """,
    "auth_error": "AuthenticationError PermissionDeniedError NoCredentialsError DefaultCredentialsError RefreshError",
    "config_error": """
        ValidationError UnrecognizedFlagError IllegalFlagValueError ArgumentError ArgumentTypeError
        ScannerError ComposerError ConstructorError OverrideParseException InstantiationException
        LexerNoViableAltException ConfigAttributeError ConfigKeyError MissingConfigException ConfigCompositionException
        TOMLDecodeError BadParameter NoSuchOption ParsingError InvalidParameterError
    """,
    "data_error": """
        FileNotFoundError FileExistsError PermissionError UnicodeDecodeError JSONDecodeError ParserError
        EmptyDataError ArrowInvalid DatasetNotFoundError DataFilesNotFoundError EmptyDatasetError
        DatasetGenerationError EntryNotFoundError RepositoryNotFoundError RevisionNotFoundError
        HFValidationError BadGzipFile LZMAError ReadError SafetensorError
        DatasetGenerationCastError NotFoundError CastError ParseError
    """,
    "divergence": "FloatingPointError NanLossDuringTrainingError",
    "killed": "BrokenProcessPool TerminatedWorkerError",
    "cuda_error": """
        AcceleratorError CudaAPIError CUDARuntimeError CUDADriverError DeferredCudaCallError OutOfResources
        CudaSupportError NVMLError
    """,
    "nccl_error": "DistBackendError DistStoreError HorovodInternalError",
    "ray_error": """
        ActorDiedError ActorUnavailableError RayActorError WorkerCrashedError NodeDiedError ObjectLostError
        RaySystemError LocalRayletDiedError RuntimeEnvSetupError OwnerDiedError ObjectStoreFullError
        GetTimeoutError
    """,
}


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in table.items() for name in names.split()}


SURE_TYPES, TYPES = _by_name(_SURE_TYPES), _by_name(_TYPES)
# Types whose messages quote names of the program: a key or attribute named "gpu" proves nothing.
_OWN_WORDS = frozenset({"KeyError", "AttributeError", "TypeError"})
_TRUSTED_FOR_OWN_WORDS = frozenset({"config_error", "import_error", "auth_error"})
_OBJECT_STORE_DENIED = compile_lazily(r"PermissionError: (?:Access ?Denied|Forbidden|Unauthorized)")  # S3 and similar
_REFUSED_LOAD = "Weights only load failed"  # the file is whole; torch.load is not allowed to read its classes
_PATHS = frozenset({"FileNotFoundError", "FileExistsError", "PermissionError"})


def exception_kind(name: str, text: str) -> str:
    """Return the kind of an exception, from the last part of its type and its whole line."""
    if _REFUSED_LOAD in text:
        return "python_error"
    if sure := SURE_TYPES.get(name):
        return sure
    kind = match_error_kind(text)
    if name in _OWN_WORDS and kind not in _TRUSTED_FOR_OWN_WORDS:
        return "python_error"
    if name in _PATHS and kind not in {"disk_full", "network_error"} and not _OBJECT_STORE_DENIED.search(text):
        return "data_error"
    return kind or TYPES.get(name, "python_error")
