"""Next steps after failures of data: tables, images, videos, archives, data sets, disks that hold them."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
_BAD = "data_error python_error config_error"
# First match wins: special before general.
# fmt: off
ROWS = (
    row("data_error", r"timestamps unexpectedly violate the tolerance", "", "stop",
        "Timestamps of the data set do not fit its videos (merged or re-encoded ones): repair or encode them again, or "
        "raise tolerance_s."),
    # --- disks
    row("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", "", "stop",
        "This user's quota is used up, not the disk (`quota -s`, `lfs quota`): delete old files there, or write to "
        "scratch."),
    row("disk_full", r"No space left|\[Errno 28\]", r"\b\d{1,2}% /|Avail", "stop",
        "The disk has bytes left but likely no inodes (`df -i`): pack small files or delete some, or write elsewhere.",
        unless=r"(?m) 100% +/(?!dev/shm|boot|snap|run)\S{1,80}$"),
    row("disk_full", r"'?(/(?:var/)?tmp/[^\s']{0,60})", "", "stop",
        "The disk of /tmp is full: set TMPDIR in env to a larger disk, or free space there, then launch_run again."),
    row("disk_full", r"PytorchStreamWriter|unexpected pos|inline_container|file write failed", "", "stop",
        "The disk (or quota) of {0} is full: free space there (`df -h`), keep fewer (save_top_k, save_total_limit), "
        "delete the cut file.",
        log=r"(?i)sav\w+ (?:\w+ ){0,4}(?:to|at|in|as):? ?['\"]?(/[^\s'\"/]+/[^\s'\"/]+)/?"),
    row("disk_full", r"PytorchStreamWriter|unexpected pos|inline_container|[Nn]o space left|\[Errno 28\]", "", "stop",
        "{0} is full (100 %): free space there or write elsewhere, keep fewer checkpoints, and delete the cut file.",
        log=r"(?m)^\S+ +[\d.]+[KMGTP]? +[\d.]+[KMGTP]? +[\d.]+[KMGTP]? +100% +(/(?!dev/shm|boot|snap|run)\S{1,80})$"),
    row("disk_full", r"PytorchStreamWriter|unexpected pos|inline_container", "", "stop",
        "{0} is full: free space there (`df -h {0}`) or write elsewhere, keep fewer, and delete the cut file.",
        log=r"(?is).*\b(?:writing|saving|save\w* to)\b[^\n/.]{0,40}(\.{0,2}/[\w.-]{1,40}(?:/[\w.-]{1,40})?)/\S*"),
    row("disk_full", r"PytorchStreamWriter|unexpected pos|inline_container", "", "stop",
        "The checkpoint was cut as its disk (or quota) was full: free space (`df -h`), keep fewer, delete the "
        "cut file."),
    row("disk_full", r"MDB_MAP_FULL", "", "stop",
        "LMDB's map is full, not the disk: open it with a larger map_size {at}, then launch_run again."),
    row(_ANY, r"[Uu]nable to mmap \d+ bytes from file .{0,80}(?:Cannot allocate memory|\(12\))|vm\.max_map_count", "",
        "stop", "Too many memory maps: raise vm.max_map_count, or use fewer num_workers and "
        "set_sharing_strategy('file_system')."),
    row("segfault oom_host disk_full", r"DataLoader worker .{0,60}Bus error|insufficient shared memory", "",
        "retry_changed",
        "Shared memory is full: enlarge /dev/shm (docker --shm-size=16g or --ipc=host), or lower num_workers."),
    # --- arrays and pickles
    row(_BAD, r"allow_pickle=False", "", "stop",
        "The array holds Python objects: np.load(..., allow_pickle=True) {at} if its source is trusted, then "
        "launch_run again."),
    row(_BAD, r"cannot reshape array of size (\d+) into shape \(([\d, ]+)\)",
        r"np\.load|read_array|lib/(?:_)?(?:npyio|format)", "stop",
        "The .npy file is cut: it holds {0} of the values of ({1}); write or fetch it again {at}, then "
        "launch_run again."),
    row(_BAD, r"No data left in file|mmap length is greater|cannot mmap an empty|File is not a zip file",
        r"np\.load|npyio|numpy", "stop",
        "The .npy or .npz file is empty or cut: write or fetch it again, or skip it {at}, then launch_run " "again."),
    row(_BAD, r"(?:Ran out of input|pickle data was truncated)", "", "stop",
        "The pickle is empty or cut, by a stop while it was written: delete it and make it again {at}, then launch_run "
        "again."),
    # --- tables
    row(_BAD, r"Error tokenizing data.{0,20}Expected (\d+) fields in line (\d+), saw (\d+)", "", "stop",
        "Line {1} of the CSV has {2} fields, not {0}: correct it or the separator (sep=), or "
        "on_bad_lines='skip' {at}."),
    row(_BAD, r"EmptyDataError|No columns to parse", "", "stop",
        "The CSV file is empty: write or fetch it again, or correct its path {at}, then launch_run again."),
    row(_BAD, r"'([\w-]+)' codec can't decode byte (0x\w\w)", r"\.(?:npy|pt|pth|bin|gz|zip|parquet|safetensors)['\"]",
        "stop", "A binary file is read as {0} text: open it with its own reader, or mode 'rb', {at}, then launch_run "
        "again."),
    row(_BAD, r"'([\w-]+)' codec can't decode byte (0x8b|0x1f)", "", "stop",
        "The file is compressed (gzip): open it with gzip.open or compression='gzip' {at}, then launch_run again."),
    row(_BAD, r"'ascii' codec can't (?:de|en)code", "", "stop",
        "The locale is ASCII: set PYTHONUTF8=1 (or LC_ALL=C.UTF-8) in env, then launch_run again."),
    row(_BAD, r"'([\w-]+)' codec can't decode byte (0x\w\w)", "", "stop",
        "The text is not {0} (byte {1}): pass its encoding (encoding='latin-1', or errors='replace') {at}, then "
        "launch_run again."),
    row(_BAD, r"(?m)Couldn't cast[\s\S]{0,2000}column names don't match"
        r"|(?:All the data files must have the same columns|there are \d+ (?:new|missing) columns)", "", "stop",
        "{2} has columns {0} too many and lacks {1}: edit it to the other files' columns, or load it apart.",
        log=r"(?s)new columns \((\{['\"][^}\n]{1,60}\})\) and \d+ missing columns \((\{['\"][^}\n]{1,60}\})\)"
        r".{0,300}generating data using\s+(\S{1,200})(?=\s)"),
    row(_BAD, r"(?m)Couldn't cast[\s\S]{0,2000}column names don't match"
        r"|(?:All the data files must have the same columns|there are \d+ (?:new|missing) columns)", "", "stop",
        "{1} has other columns ({0}) than the rest: edit it to matching columns, or pass features= to " "load_dataset.",
        log=r"(?s)(\{['\"][^}\n]{1,80}\}).{0,300}generating data using\s+(\S{1,200})(?=\s)"),
    row(_BAD, r"JSON parse error: (.{1,60}?) in row (\d+)", "", "stop",
        "Row {1} of a JSON file is not valid ({0}): correct or drop that line, then launch_run again (delete "
        "the cache)."),
    row(_BAD, r"(?m)Couldn't cast|CastError|ArrowInvalid.{0,60}(?:JSON|Column|changed from)|ArrowTypeError", "", "stop",
        "The rows have different types or columns: make them equal in the files, or pass features= to "
        "load_dataset {at}."),
    row("data_error python_error", r"Config name is missing|Please pick one among the available configs",
        "", "stop", "load_dataset needs a configuration's name as second argument: one of {0} {at}.",
        log=r"available configs: \[([^\]\n]{1,200})"),
    row(_BAD, r"NonMatchingSplitsSizesError|NonMatchingChecksumError|ExpectedMoreSplits", "", "stop",
        "The download was cut or the data has changed: load_dataset(..., download_mode='force_redownload') {at}."),
    row(_BAD, r"An error occurred while generating the dataset|DatasetGenerationError",
        r"(?s)\A(?!.*(?:ParserError|JSON|Arrow|Unicode))", "stop",
        "A source file of the data set cannot be read: the first exception above names it; correct it {at}."),
    row(_BAD, r"Repo id must be in the form .{0,80}?: '([^']{1,200})'", "", "stop",
        "{0} is no directory on this host, so it was taken for a Hub name: correct the path, then launch_run again."),
    row(_BAD, r"num_samples should be a positive integer|num_samples=0|Found 0 (?:files|images)", "", "stop",
        "The dataset is empty {at}: correct its path, split or filter (print len(dataset)), then launch_run again."),
    row(_BAD, r"offset overflow while concatenating", "", "stop",
        "A batch of text exceeds 2 GiB: lower batch_size and writer_batch_size of map (to 100), or cast to "
        "large_string, {at}."),
    row(_BAD, r"Could not convert (.{1,40}?) with type (\w+): tried to convert to (\w+)", "", "stop",
        "A column mixes types: {0} is {1} where {2} is expected; make the column one type {at}, then "
        "launch_run again."),
    row(_BAD, r"Invalid pattern: '\*\*' can only be an entire path"
        r"|Loading a dataset cached in a LocalFileSystem is not supported", "", "stop",
        "datasets and fsspec do not fit: pip install -U datasets (or fsspec<2023.10) in this environment, then "
        "launch_run again."),
    row(_BAD, r"[Dd]irectory (\S{1,200}) is neither a `?Dataset`? directory", "", "stop",
        "{0} was not written by save_to_disk: use load_dataset on it, or name the directory that was, {at}."),
    row(_BAD, r"SchemaInferenceError|Please pass `features` or at least one example", "", "stop",
        "The data set is empty {at}: a filter or map dropped all rows, or the source has none; print len(dataset)."),
    row(_BAD, r"(?:EmptyDatasetError: )?The directory at (\S{1,200}) doesn't contain any data files", "", "stop",
        "{0} holds no data files: fetch or unpack them there, or name the right directory {at}, then "
        "launch_run again."),
    row(_BAD, r"[Dd]ataset '([^']{1,120})' doesn't exist on the Hub", "", "stop",
        "The Hub has no data set {0}: correct its name, or name HF_TOKEN in secrets if it is private or gated."),
    row(_BAD, r"features can't be aligned because the key (\S{1,60})", "", "stop",
        "The data sets differ in column {0}: cast or remove it before they are joined {at}, then launch_run again."),
    row(_BAD, r"didn't find (\[.{1,60}?\]) in (\[.{1,90}?\])", "", "stop",
        "The shard's samples have no {0}, but {1}: correct the names in to_tuple or decode {at}."),
    row(_BAD, r"[Dd]ataset not found or corrupted|File not found or corrupted", "", "stop",
        "The data set is missing or was cut while it was downloaded: delete it and pass download=True once {at}."),
    row(_BAD, r"(?m)images not found[^,\n]{0,8}, missing path '([^'\n]{1,200})'", "", "stop",
        "{0} does not exist: correct path, train and val in the data YAML (or datasets_dir in Ultralytics' settings)."),
    row("python_error data_error",
        r"not enough values to unpack \(expected \d+, got 0\)|No (?:valid )?labels found|No valid images",
        r"ultralytics|yolo", "stop",
        "No image has a valid label: classes in the label files must be below nc (names) of the data YAML; see "
        "the warnings above.", log=r"(?:Label class \d+ exceeds|ignoring corrupt|No labels found)"),
    row(_BAD, r"FileExistsError.{0,40}'/?\d{6}_\w+'|clean_stale_shared_memory", "", "stop",
        "An older run left shared memory of Mosaic streaming: streaming.base.util.clean_stale_shared_memory() first."),
    row(_BAD, r"Couldn't find appropriate backend to handle uri|No audio (?:I/O )?backend", "", "stop",
        "torchaudio has no backend for this format: install ffmpeg or soundfile in this environment, then "
        "launch_run again."),
    row(_BAD, r"Cannot work out file type of \"?([^\"\n]{1,160})|Empty file: '?([^'\n]{1,160})"
        r"|File (\S{1,160}) is not a gzip", "", "stop",
        "{0}{1}{2} is empty, cut or of another format: fetch it again or leave it out {at}, then launch_run " "again."),
    row(_ANY, r"smudge filter lfs failed|over its data quota", "", "stop",
        "git-lfs could not fetch the files (a quota, or no access): get them elsewhere (hf download), then "
        "launch_run again."),
    row(_ANY, r"Cannot retrieve the public link|Too many users have viewed or downloaded", "", "stop",
        "Google Drive refuses the download: fetch the file by hand once, and point the run at the local copy."),
    row(_ANY, r"\[Errno 18\] Invalid cross-device link", "", "stop",
        "A file is moved to another disk: set TMPDIR in env to the target's disk, or use shutil.move {at}."),
    row(_ANY, r"\[Errno 39\] Directory not empty: '?([^'\n]{1,160})", "", "stop",
        "{0} is written while it is deleted, mostly by several ranks: let rank 0 alone delete and rename {at}."),
    row(_ANY, r"\[Errno 37\] No locks available|\[Errno 524\]|flock.{0,40}(?:not implemented|Function not)", "", "stop",
        "This file system has no locks: put the cache on a local disk (HF_HOME, TRITON_CACHE_DIR in env), then "
        "launch_run again."),
    row(_BAD, r"Resource (\S{1,60}) not found", r"nltk", "stop",
        "NLTK lacks {0}: nltk.download('{0}') once where there is a network (NLTK_DATA in env names the directory)."),
    row(_BAD, r"Can't find model '([\w.-]{1,60})'", r"spacy|E050", "stop",
        "spaCy lacks {0}: python -m spacy download {0} in this run's environment, then launch_run again."),
    row(_BAD, r"KeyError: '(annotations|images|categories)'", r"coco", "stop",
        "The file is not a COCO file with {0} (test sets have none): name the right annotation file {at}."),
    row(_BAD, r"(?i)expected (\w{1,40}) (?:for .{1,80}? )?to be (?:in (?:the )?range|between"
        r"|in) (.{1,30}?),? (?:but )?got (\S{1,30})", "", "stop",
        "{0} is {2}, allowed is {1}: clip or correct that value in the data {at}, then launch_run again."),
    # --- images, video, audio
    row(_BAD, r"image file is truncated|broken data stream|Truncated File Read", "", "stop",
        "An image is cut: fetch it again or skip it {at}, or set ImageFile.LOAD_TRUNCATED_IMAGES = True."),
    row(_BAD, r"cannot identify image file (?:<[\w.]{1,40} name=)?'?<?([^'>\n]{1,160})", "", "stop",
        "{0} is not an image (empty, cut or another format): fetch it again, or skip it {at}."),
    row(_BAD, r"decompression bomb", "", "stop",
        "An image is larger than Pillow allows: shrink or skip it {at}, or set Image.MAX_IMAGE_PIXELS = None."),
    row(_BAD, r"cannot write mode (\w+) as (\w+)", "", "stop",
        "{1} cannot hold mode {0}: convert('RGB') before saving {at}, or save as PNG, then launch_run again."),
    row(_BAD, r"OpenCV.{0,200}(?:!_?src\.empty|ssize\.empty|!img\.empty|size\.width ?> ?0)", "", "stop",
        "cv2.imread gave None: the image's path is wrong or the file cannot be read; check what is passed {at}."),
    row(_BAD, r"Invalid frame index=(\d+) .{0,60}must be less than (\d+)", "", "stop",
        "Frame {0} is wanted of a video that ends sooner: its timestamps are not frame / fps; correct them, or leave "
        "that episode out."),
    row(_BAD, r"(?i)DECORDError|video_reader\.cc|moov atom not found|Invalid data found when processing"
        r"|could not open codec|cannot find video stream|No valid stream found in input file", "", "stop",
        "A video is cut or has no video stream (`ffprobe` shows it): fetch it again, or skip it {at}, then "
        "launch_run again."),
    row(_ANY, r"No such file or directory: '(ffmpeg|ffprobe|sox|git|nvcc|gcc|g\+\+|java|aria2c|wget|curl|unzip|Xvfb"
        r"|nvidia-smi)'", "", "stop",
        "The program {0} is not on this run's PATH: install it (apt or conda), then launch_run again."),
    row(_BAD, r"(?i)soundfile|LibsndfileError|NoBackendError|sndfile", "", "stop",
        "The audio file {at} cannot be read: check its path and format, install libsndfile or ffmpeg, or skip it."),
    # --- archives and streams
    row(_BAD, r"(?:corrupted|truncated) record at (\d+)", "", "stop",
        "A TFRecord file is cut or damaged (byte {0}): write or fetch it again, or tf.data's ignore_errors() {at}."),
    row(_BAD, r"(?:unexpected end of data|ReadError|invalid header|end-of-stream marker|not a gzip file"
        r"|BadGzipFile).{0,120}?(?:name=\\?'?|, '(?=/))([^'\\>\n]{1,160})", "", "stop",
        "The shard {0} is cut: delete it and fetch it again, or skip it (handler=wds.warn_and_continue)."),
    row(_BAD, r"tarfile\.ReadError|unexpected end of data|end-of-stream marker|BadZipFile|File is not a zip file"
        r"|BadGzipFile|zlib\.error", "", "stop",
        "The archive is cut, or a web page instead (a refused download): delete it and fetch it again {at}, "
        "then launch_run again."),
    row(_BAD, r"fewer shards than workers|[Nn]ot enough shards|fewer shards than", "", "stop",
        "Some workers get no shard: lower num_workers (or the ranks), make more shards, or resampled=True, "
        "then launch_run again."),
    row(_BAD, r"Unable to find '([^'\n]{1,200})'", "", "stop",
        "No file matches {0}: correct the pattern or directory {at} (`ls` it on this host), then launch_run again."),
    row("data_error", r"\[Errno 21\] Is a directory: '?([^'\n]{1,200})", "", "stop",
        "{0} is a directory, and a file is wanted: name the file in it {at}, then launch_run again."),
    row("data_error", r"\[Errno 20\] Not a directory: '?([^'\n]{1,200})", "", "stop",
        "A part of {0} is a file, not a directory: correct the path, then launch_run again."),
    row("data_error auth_error",
        r"Permission denied: '([^']{1,160}(?:\.cache|/hf|/hub|huggingface|models--)[^']{0,160})", "", "stop",
        "No permission for the cache {0}: set HF_HOME in env to a directory of your own, or fix its rights."),
    row("data_error auth_error",
        r"Permission denied: '(/root/[^']{0,160}|/home/[^']{0,160}/\.cache[^']{0,100}|[^']{0,100}/\.(?:triton"
        r"|cache|config)[^']{0,100})", "", "stop",
        "No permission for {0}: set HOME (or XDG_CACHE_HOME, TRITON_CACHE_DIR) in env to a directory of your " "own."),
    row(_BAD, r"[Uu]nable to (?:synchronously )?open (?:file|object).{0,80}(?:file signature not found|truncated file)",
        "", "stop",
        "The HDF5 file is cut or not HDF5: write or fetch it again, and open it {at} only when it is whole."),
)
# fmt: on
