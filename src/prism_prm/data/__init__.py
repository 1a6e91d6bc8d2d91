"""Read labeled solutions, problems and pools; make trees and pairs."""
