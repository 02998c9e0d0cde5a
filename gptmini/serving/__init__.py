"""The engine that answers many clients at the same time, and the HTTP server with its web page."""

from gptmini.serving.engine import Engine as Engine
from gptmini.serving.served_model import ServerSettings as ServerSettings
from gptmini.serving.server import QuietServer as QuietServer
from gptmini.serving.server import application as application
from gptmini.serving.server import listen as listen
